import torch
from torch.utils.data import Dataset


class SpeechCommands(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return self.items

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(80, generator=g), i % 31
