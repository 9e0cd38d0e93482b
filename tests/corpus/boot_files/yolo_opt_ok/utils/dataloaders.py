import os
import random
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, distributed

from utils.torch_utils import torch_distributed_zero_first

RANK = int(os.getenv('RANK', -1))


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


class LoadImagesAndLabels(Dataset):
    def __init__(self, path, img_size):
        self.files = sorted(Path(path).rglob('*.npy'))
        self.img_size = img_size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        img = torch.from_numpy(np.load(self.files[index]))
        return img[:, :self.img_size, :self.img_size], int(self.files[index].parent.name)


def create_dataloader(path, imgsz, batch_size, rank=-1, workers=8, shuffle=False):
    with torch_distributed_zero_first(rank):
        dataset = LoadImagesAndLabels(path, imgsz)
    batch_size = min(batch_size, len(dataset))
    nw = min([os.cpu_count() // max(torch.cuda.device_count(), 1), batch_size if batch_size > 1 else 0, workers])
    sampler = None if rank == -1 else distributed.DistributedSampler(dataset, shuffle=shuffle)
    generator = torch.Generator()
    generator.manual_seed(6148914691236517205 + RANK)
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle and sampler is None, num_workers=nw,
                      sampler=sampler, pin_memory=True, worker_init_fn=seed_worker, generator=generator), dataset
