import torch
from torch.utils.data import Dataset


class CharDataset(Dataset):
    def __init__(self, path, block_size):
        text = open(path).read()
        chars = sorted(set(text))
        self.stoi = {c: i for i, c in enumerate(chars)}
        self.vocab_size = len(chars)
        self.block_size = block_size
        self.data = text

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, i):
        ids = [self.stoi[c] for c in self.data[i:i + self.block_size + 1]]
        return torch.tensor(ids[:-1]), torch.tensor(ids[1:])
