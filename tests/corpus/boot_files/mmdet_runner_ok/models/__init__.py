from .detectors import RetinaLike, build_detector

__all__ = ['RetinaLike', 'build_detector']
