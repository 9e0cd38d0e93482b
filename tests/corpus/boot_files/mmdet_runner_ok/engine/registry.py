class Registry:
    def __init__(self, name):
        self.name, self._modules = name, {}

    def register_module(self):
        def add(cls):
            self._modules[cls.__name__] = cls
            return cls

        return add

    def build(self, cfg, **extra):
        cfg = dict(cfg)
        return self._modules[cfg.pop('type')](**cfg, **extra)


HOOKS = Registry('hooks')
MODELS = Registry('models')
