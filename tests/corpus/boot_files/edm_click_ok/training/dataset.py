import os

import numpy as np
import torch


class ImageFolderDataset(torch.utils.data.Dataset):
    def __init__(self, path):
        self.path = path
        self.names = sorted(name for name in os.listdir(path) if name.endswith('.npy'))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, idx):
        return torch.from_numpy(np.load(os.path.join(self.path, self.names[idx]))).float(), idx
