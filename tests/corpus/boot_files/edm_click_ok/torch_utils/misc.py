import torch


class InfiniteSampler(torch.utils.data.Sampler):
    """Loops over the dataset for ever, shuffling items as it goes."""

    def __init__(self, dataset, rank=0, num_replicas=1, shuffle=True, seed=0):
        self.size, self.rank, self.num_replicas = len(dataset), rank, num_replicas
        self.shuffle, self.seed = shuffle, seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        idx = 0
        while True:
            order = torch.randperm(self.size, generator=generator) if self.shuffle else torch.arange(self.size)
            for i in order.tolist():
                if idx % self.num_replicas == self.rank:
                    yield i
                idx += 1


def print_module_summary(module):
    total = sum(p.numel() for p in module.parameters())
    print(f'{type(module).__name__}: {total} parameters')
