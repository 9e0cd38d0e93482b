from .util import EasyDict, format_time

__all__ = ['EasyDict', 'format_time']
