import os
from contextlib import contextmanager
from copy import deepcopy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

LOCAL_RANK = int(os.getenv('LOCAL_RANK', -1))


@contextmanager
def torch_distributed_zero_first(local_rank: int):
    # all processes wait for the first of their node
    if local_rank not in [-1, 0]:
        dist.barrier(device_ids=[local_rank])
    yield
    if local_rank == 0:
        dist.barrier(device_ids=[0])


def select_device(device='', batch_size=0):
    device = str(device).strip().lower().replace('cuda:', '').replace('none', '')
    cpu = device == 'cpu'
    if cpu:
        os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
    elif device:
        os.environ['CUDA_VISIBLE_DEVICES'] = device
    arg = 'cuda:0' if not cpu and torch.cuda.is_available() else 'cpu'
    return torch.device(arg)


def smart_DDP(model):
    return DDP(model, device_ids=[LOCAL_RANK], output_device=LOCAL_RANK, static_graph=True)


def de_parallel(model):
    return model.module if isinstance(model, (nn.DataParallel, DDP)) else model


def initialize_weights(model):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.eps, m.momentum = 1e-3, 0.03


class EarlyStopping:
    def __init__(self, patience=30):
        self.best_fitness, self.best_epoch = float('-inf'), 0
        self.patience = patience or float('inf')

    def __call__(self, epoch, fitness):
        if fitness >= self.best_fitness:
            self.best_epoch, self.best_fitness = epoch, fitness
        return epoch - self.best_epoch >= self.patience


class ModelEMA:
    def __init__(self, model, decay=0.9999):
        self.ema = deepcopy(de_parallel(model)).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        msd = de_parallel(model).state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v.mul_(self.decay).add_(msd[k].detach(), alpha=1 - self.decay)
