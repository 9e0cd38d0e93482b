from dataclasses import dataclass

import fsspec
import torch
from torch.utils.data import Dataset


@dataclass
class DataConfig:
    path: str
    block_size: int
    train_split: float
    truncate: float = 1.0


class CharDataset(Dataset):
    def __init__(self, data_cfg: DataConfig):
        with fsspec.open(data_cfg.path, mode="r") as f:
            data = f.read()
        data = data[: int(len(data) * data_cfg.truncate)]
        chars = sorted(set(data))
        self.stoi = {ch: i for i, ch in enumerate(chars)}
        self.block_size = data_cfg.block_size
        self.vocab_size = len(chars)
        self.data = data

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, idx):
        dix = torch.tensor([self.stoi[s] for s in self.data[idx:idx + self.block_size + 1]], dtype=torch.long)
        return dix[:-1], dix[1:]
