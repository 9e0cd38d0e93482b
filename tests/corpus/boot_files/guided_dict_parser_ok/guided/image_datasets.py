import os
import random

import numpy as np
import torch.distributed as dist
from PIL import Image
from torch.utils.data import DataLoader, Dataset


def load_data(*, data_dir, batch_size, image_size, class_cond=False, deterministic=False, random_flip=True):
    """An endless generator of (images, kwargs); each process has a shard of the files."""
    if not data_dir:
        raise ValueError("unspecified data directory")
    files = _list_image_files(data_dir)
    classes = None
    if class_cond:
        names = [os.path.basename(path).split("_")[0] for path in files]
        numbers = {x: i for i, x in enumerate(sorted(set(names)))}
        classes = [numbers[x] for x in names]
    dataset = ImageDataset(image_size, files, classes=classes, shard=dist.get_rank(),
                           num_shards=dist.get_world_size(), random_flip=random_flip)
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=not deterministic, num_workers=1, drop_last=True)
    while True:
        yield from loader


def _list_image_files(data_dir):
    results = []
    for entry in sorted(os.listdir(data_dir)):
        path = os.path.join(data_dir, entry)
        if os.path.isdir(path):
            results.extend(_list_image_files(path))
        elif entry.lower().rsplit(".", 1)[-1] in ("jpg", "jpeg", "png"):
            results.append(path)
    return results


class ImageDataset(Dataset):
    def __init__(self, resolution, image_paths, classes=None, shard=0, num_shards=1, random_flip=True):
        super().__init__()
        self.resolution = resolution
        self.local_images = image_paths[shard:][::num_shards]
        self.local_classes = None if classes is None else classes[shard:][::num_shards]
        self.random_flip = random_flip

    def __len__(self):
        return len(self.local_images)

    def __getitem__(self, idx):
        with Image.open(self.local_images[idx]) as image:
            arr = np.array(image.convert("RGB").resize((self.resolution, self.resolution)))
        if self.random_flip and random.random() < 0.5:
            arr = arr[:, ::-1]
        arr = arr.astype(np.float32) / 127.5 - 1
        out = {}
        if self.local_classes is not None:
            out["y"] = np.array(self.local_classes[idx], dtype=np.int64)
        return np.transpose(arr, [2, 0, 1]).copy(), out
