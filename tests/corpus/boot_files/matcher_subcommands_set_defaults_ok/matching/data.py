from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset


class SyntheticHomographies(Dataset):
    def __init__(self, root, max_angle):
        self.files, self.max_angle = sorted(Path(root).glob("*.npy")), max_angle

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        a = torch.from_numpy(np.load(self.files[i])).float()[None]
        k = torch.randint(0, 9, ()).item()
        return a, torch.roll(a, (k - 4, 0), (1, 2)), k


class Pairs(Dataset):
    def __init__(self, listing):
        self.rows = [line.split() for line in Path(listing).read_text().splitlines()]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        a, b, k = self.rows[i]
        return torch.from_numpy(np.load(a)).float()[None], torch.from_numpy(np.load(b)).float()[None], int(k)
