import numpy as np
import torch
from torch.utils.data import Dataset


def read_tokens(path):
    return np.memmap(path, dtype=np.uint16, mode="r")


class Windows(Dataset):
    def __init__(self, tokens, block_size):
        self.tokens, self.block_size = tokens, block_size

    def __len__(self):
        return (len(self.tokens) - 1) // self.block_size

    def __getitem__(self, i):
        part = self.tokens[i * self.block_size:(i + 1) * self.block_size + 1].astype(np.int64)
        return torch.from_numpy(part[:-1]), torch.from_numpy(part[1:])
