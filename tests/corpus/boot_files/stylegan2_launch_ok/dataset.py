import os

import numpy as np
import torch
from torch.utils.data import Dataset


class MultiResolutionDataset(Dataset):
    def __init__(self, path, resolution=256):
        self.root = os.path.join(path, str(resolution))
        self.names = sorted(os.listdir(self.root))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return torch.from_numpy(np.load(os.path.join(self.root, self.names[index]))).float()
