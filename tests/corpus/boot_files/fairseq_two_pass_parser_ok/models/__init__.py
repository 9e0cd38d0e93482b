ARCH_MODEL_REGISTRY = {}
ARCH_CONFIG_REGISTRY = {}


def build_model(args, task):
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)


def register_model_architecture(cls, arch):
    def wrapper(fn):
        ARCH_MODEL_REGISTRY[arch] = cls
        ARCH_CONFIG_REGISTRY[arch] = fn
        return fn

    return wrapper


from . import lstm  # noqa: E402,F401
