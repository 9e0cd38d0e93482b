import torch


class SubsetRandomSampler(torch.utils.data.Sampler):
    """Samples elements randomly from a given list of indices, without replacement."""

    def __init__(self, indices):
        self.epoch = 0
        self.indices = indices

    def __iter__(self):
        return (self.indices[i] for i in torch.randperm(len(self.indices)))

    def __len__(self):
        return len(self.indices)

    def set_epoch(self, epoch):
        self.epoch = epoch
