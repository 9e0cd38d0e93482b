import copy
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

LOCAL_RANK = int(os.getenv('LOCAL_RANK', -1))


@contextmanager
def torch_distributed_zero_first(local_rank: int):
    """Makes all processes wait for the one with local_rank 0 to do something first."""
    if local_rank not in [-1, 0]:
        dist.barrier(device_ids=[local_rank])
    yield
    if local_rank == 0:
        dist.barrier(device_ids=[0])


def smart_DDP(model):
    return DDP(model, device_ids=[LOCAL_RANK], output_device=LOCAL_RANK, static_graph=True)


def select_device(device='', batch_size=0):
    device = str(device).strip().lower().replace('cuda:', '').replace('none', '')
    if device == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
    elif device:
        os.environ['CUDA_VISIBLE_DEVICES'] = device
        assert torch.cuda.is_available(), f"Invalid CUDA '--device {device}' requested"
    arg = 'cuda:0' if device != 'cpu' and torch.cuda.is_available() else 'cpu'
    return torch.device(arg)


def is_parallel(model):
    return type(model) in (torch.nn.parallel.DataParallel, DDP)


def de_parallel(model):
    return model.module if is_parallel(model) else model


class ModelEMA:
    def __init__(self, model, decay=0.9999):
        self.ema = copy.deepcopy(de_parallel(model)).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        msd = de_parallel(model).state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= self.decay
                v += (1 - self.decay) * msd[k].detach()


class EarlyStopping:
    def __init__(self, patience=30):
        self.best_fitness = float('-inf')
        self.best_epoch = 0
        self.patience = patience

    def __call__(self, epoch, fitness):
        if fitness >= self.best_fitness:
            self.best_epoch, self.best_fitness = epoch, fitness
        return epoch - self.best_epoch >= self.patience
