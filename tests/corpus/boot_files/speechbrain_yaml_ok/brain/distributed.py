import os
from functools import wraps

import torch

MAIN_PROC_ONLY = 0


def if_main_process():
    if "RANK" in os.environ:
        return int(os.environ["RANK"]) == 0
    return True


def main_process_only(function):
    @wraps(function)
    def wrapped(*args, **kwargs):
        if if_main_process():
            return function(*args, **kwargs)
        return None

    return wrapped


def run_on_main(func, args=None, kwargs=None):
    """Run func on the main process, the others wait for it."""
    args, kwargs = args or [], kwargs or {}
    if if_main_process():
        try:
            func(*args, **kwargs)
        finally:
            ddp_barrier()
    else:
        ddp_barrier()


def ddp_barrier():
    if torch.distributed.is_initialized():
        if torch.distributed.get_backend() == torch.distributed.Backend.NCCL:
            torch.distributed.barrier(device_ids=[torch.cuda.current_device()])
        else:
            torch.distributed.barrier()


def ddp_init_group(run_opts):
    rank, local_rank = os.environ.get("RANK"), os.environ.get("LOCAL_RANK")
    if rank is None or local_rank is None:
        return
    local_rank = int(local_rank)
    if not run_opts["distributed_backend"] == "gloo":
        if local_rank + 1 > torch.cuda.device_count():
            raise ValueError("Killing process as there is one process too many for the GPUs.")
    if "cuda" in run_opts["device"]:
        run_opts["device"] = f"cuda:{local_rank}"
        torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group(backend=run_opts["distributed_backend"], rank=int(rank))


def ddp_end():
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
