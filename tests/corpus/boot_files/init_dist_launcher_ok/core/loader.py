from functools import partial

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import VOCSegmentation

from .dist_utils import get_dist_info


def both(img, gt):
    img, gt = img.resize((256, 256)), gt.resize((256, 256), 0)
    return torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255, torch.from_numpy(np.array(gt)).long()


def build_dataloader(root, samples_per_gpu, workers_per_gpu, dist=True, shuffle=True, seed=None):
    rank, world_size = get_dist_info()
    dataset = VOCSegmentation(root, image_set='train', transforms=both)
    if dist:
        sampler = DistributedSampler(dataset, world_size, rank, shuffle=shuffle, seed=seed)
        shuffle = False
    else:
        sampler = None
    init_fn = partial(worker_init_fn, num_workers=workers_per_gpu, rank=rank, seed=seed) if seed is not None else None
    return DataLoader(dataset, batch_size=samples_per_gpu, sampler=sampler, num_workers=workers_per_gpu,
                      shuffle=shuffle, worker_init_fn=init_fn, drop_last=True)


def worker_init_fn(worker_id, num_workers, rank, seed):
    np.random.seed(num_workers * rank + worker_id + seed)
