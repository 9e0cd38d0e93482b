import os

import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


def load_data(*, data_dir, batch_size, image_size, deterministic=False):
    """Create an endless generator over (images, kwargs) pairs."""
    if not data_dir:
        raise ValueError("unspecified data directory")
    dataset = ImageDataset(
        image_size,
        _list_files(data_dir),
        shard=dist.get_rank(),
        num_shards=dist.get_world_size(),
    )
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=not deterministic, num_workers=1, drop_last=True)
    while True:
        yield from loader


def _list_files(data_dir):
    results = []
    for entry in sorted(os.listdir(data_dir)):
        full_path = os.path.join(data_dir, entry)
        if entry.endswith(".npy"):
            results.append(full_path)
        elif os.path.isdir(full_path):
            results.extend(_list_files(full_path))
    return results


class ImageDataset(Dataset):
    def __init__(self, resolution, image_paths, shard=0, num_shards=1):
        super().__init__()
        self.resolution = resolution
        self.local_images = image_paths[shard:][::num_shards]

    def __len__(self):
        return len(self.local_images)

    def __getitem__(self, idx):
        arr = np.load(self.local_images[idx])[: self.resolution, : self.resolution]
        return np.transpose(arr.astype(np.float32) / 127.5 - 1, [2, 0, 1]), {}
