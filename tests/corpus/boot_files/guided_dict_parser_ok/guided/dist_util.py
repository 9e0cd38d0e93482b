"""Helpers for distributed training."""
import io
import os

import torch as th
import torch.distributed as dist


def setup_dist():
    if dist.is_initialized():
        return
    backend = "gloo" if not th.cuda.is_available() else "nccl"
    if th.cuda.is_available():
        th.cuda.set_device(dev())
    dist.init_process_group(backend=backend, init_method="env://")


def dev():
    """The device of this process."""
    if th.cuda.is_available():
        return th.device(f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}")
    return th.device("cpu")


def load_state_dict(path, **kwargs):
    with open(path, "rb") as f:
        data = f.read()
    return th.load(io.BytesIO(data), **kwargs)


def sync_params(params):
    """Send rank 0's parameters to the others."""
    for p in params:
        with th.no_grad():
            dist.broadcast(p, 0)
