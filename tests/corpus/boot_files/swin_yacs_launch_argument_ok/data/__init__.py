from .build import build_loader as _build_loader


def build_loader(config):
    return _build_loader(config)
