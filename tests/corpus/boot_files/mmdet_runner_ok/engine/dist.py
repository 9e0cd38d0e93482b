import functools
import os
import subprocess

import torch
from torch import distributed as torch_dist


def is_distributed():
    return torch_dist.is_available() and torch_dist.is_initialized()


def get_dist_info():
    if is_distributed():
        return torch_dist.get_rank(), torch_dist.get_world_size()
    return 0, 1


def master_only(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        rank, _ = get_dist_info()
        if rank == 0:
            return func(*args, **kwargs)

    return wrapper


def init_dist(launcher, backend='nccl', **kwargs):
    if launcher == 'pytorch':
        _init_dist_pytorch(backend, **kwargs)
    elif launcher == 'slurm':
        _init_dist_slurm(backend, **kwargs)
    else:
        raise ValueError(f'Invalid launcher type: {launcher}')


def _init_dist_pytorch(backend, **kwargs):
    local_rank = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(local_rank)
    torch_dist.init_process_group(backend=backend, **kwargs)


def _init_dist_slurm(backend, port=None, **kwargs):
    proc_id = int(os.environ['SLURM_PROCID'])
    ntasks = int(os.environ['SLURM_NTASKS'])
    num_gpus = torch.cuda.device_count()
    torch.cuda.set_device(proc_id % num_gpus)
    addr = subprocess.getoutput('scontrol show hostname "$SLURM_NODELIST" | head -n1')
    os.environ['MASTER_PORT'] = str(port or 29500)
    os.environ['MASTER_ADDR'] = addr
    os.environ['WORLD_SIZE'] = str(ntasks)
    os.environ['RANK'] = str(proc_id)
    torch_dist.init_process_group(backend=backend, **kwargs)


def barrier():
    if is_distributed():
        torch_dist.barrier()


def close():
    if is_distributed():
        torch_dist.destroy_process_group()
