from torch.utils.data import DataLoader, DistributedSampler

from .dist_utils import get_dist_info


class Registry:
    def __init__(self, name):
        self._name, self._module_dict = name, {}

    def register_module(self, name=None):
        def _register(cls):
            self._module_dict[name or cls.__name__] = cls
            return cls
        return _register

    def get(self, key):
        return self._module_dict[key]

    def build(self, cfg):
        args = dict(cfg)
        return self.get(args.pop("type"))(**args)


MODELS, DATASETS, HOOKS = Registry("models"), Registry("datasets"), Registry("hooks")


def build_model(cfg):
    return MODELS.build(cfg)


def build_dataset(cfg):
    return DATASETS.build(cfg)


def build_dataloader(dataset, samples_per_gpu, workers_per_gpu, dist=True, shuffle=True, seed=None):
    rank, world_size = get_dist_info()
    if dist:
        sampler = DistributedSampler(dataset, world_size, rank, shuffle=shuffle, seed=seed or 0)
        shuffle = False
    else:
        sampler = None
    return DataLoader(dataset, batch_size=samples_per_gpu, sampler=sampler, num_workers=workers_per_gpu,
                      pin_memory=True, shuffle=shuffle)
