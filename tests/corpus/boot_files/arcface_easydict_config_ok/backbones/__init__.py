from .iresnet import iresnet18, iresnet50


def get_model(name, **kwargs):
    if name == "r18":
        return iresnet18(False, **kwargs)
    if name == "r50":
        return iresnet50(False, **kwargs)
    raise ValueError(name)
