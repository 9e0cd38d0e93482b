import random

from torch.utils.data import Dataset


class PartitionedDataset(Dataset):
    """This rank's part of a data set: a random one, and another one with each seed."""

    def __init__(self, data, rank, world_size, seed):
        self.data = data
        indexes = list(range(len(data)))
        random.Random(seed).shuffle(indexes)
        part = len(indexes) // world_size
        self.indexes = indexes[rank * part:(rank + 1) * part]

    def __len__(self):
        return len(self.indexes)

    def __getitem__(self, i):
        return self.data[self.indexes[i]]
