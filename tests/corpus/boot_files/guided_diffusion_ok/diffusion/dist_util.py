import io
import os

import torch as th
import torch.distributed as dist


def setup_dist():
    """Setup a distributed process group."""
    if dist.is_initialized():
        return
    backend = "gloo" if not th.cuda.is_available() else "nccl"
    if th.cuda.is_available():
        th.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend=backend, init_method="env://")


def dev():
    if th.cuda.is_available():
        return th.device("cuda")
    return th.device("cpu")


def load_state_dict(path, **kwargs):
    """Read the file on rank 0 only, and send what it has to the others."""
    box = [None]
    if dist.get_rank() == 0:
        with open(path, "rb") as f:
            box[0] = f.read()
    dist.broadcast_object_list(box, src=0)
    return th.load(io.BytesIO(box[0]), **kwargs)


def sync_params(params):
    """Synchronize a sequence of Tensors across ranks from rank 0."""
    for p in params:
        with th.no_grad():
            dist.broadcast(p, 0)


def teardown():
    dist.barrier()
    dist.destroy_process_group()
