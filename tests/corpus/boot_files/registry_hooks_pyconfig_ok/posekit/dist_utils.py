import os
import subprocess

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def init_dist(launcher, backend="nccl", **kwargs):
    if mp.get_start_method(allow_none=True) is None:
        mp.set_start_method("spawn")
    if launcher == "pytorch":
        _init_dist_pytorch(backend, **kwargs)
    elif launcher == "slurm":
        _init_dist_slurm(backend, **kwargs)
    else:
        raise ValueError("Invalid launcher type: " + launcher)


def _init_dist_pytorch(backend, **kwargs):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend=backend, **kwargs)


def _init_dist_slurm(backend, port=29500):
    proc_id, ntasks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    torch.cuda.set_device(proc_id % torch.cuda.device_count())
    addr = subprocess.getoutput("scontrol show hostname %s | head -n1" % os.environ["SLURM_NODELIST"])
    os.environ.update(MASTER_PORT=str(port), MASTER_ADDR=addr, WORLD_SIZE=str(ntasks), RANK=str(proc_id))
    dist.init_process_group(backend=backend)


def get_dist_info():
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
