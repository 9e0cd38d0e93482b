import builtins
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: F401

my_rank = -1
my_size = -1
my_local_rank = -1
my_local_size = -1
orig_print = builtins.print


def env2int(env_list, default=-1):
    for e in env_list:
        val = int(os.environ.get(e, -1))
        if val >= 0:
            return val
    return default


def get_my_slice(n):
    k, m = divmod(n, my_size)
    return slice(my_rank * k + min(my_rank, m), (my_rank + 1) * k + min(my_rank + 1, m), 1)


def init_distributed(rank=-1, local_rank=-1, size=-1, use_gpu=False, backend=""):
    global my_rank, my_size, my_local_rank, my_local_size
    num_mpi_ranks = env2int(["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "WORLD_SIZE"])
    if num_mpi_ranks > 1:
        if backend == "":
            backend = "nccl" if use_gpu and dist.is_nccl_available() else "gloo"
        if rank == -1:
            rank = env2int(["PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "RANK"], 0)
        if size == -1:
            size = num_mpi_ranks
        if not os.environ.get("RANK", None):
            os.environ["RANK"] = str(rank)
        if not os.environ.get("WORLD_SIZE", None):
            os.environ["WORLD_SIZE"] = str(size)
        if not os.environ.get("MASTER_PORT", None):
            os.environ["MASTER_PORT"] = "29500"
        if not os.environ.get("MASTER_ADDR", None):
            local_size = env2int(["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"], 1)
            if local_size != size:
                print("Warning: looks like a distributed multi-node run but MASTER_ADDR env not set")
            os.environ["MASTER_ADDR"] = "127.0.0.1"
    if size > 1:
        if local_rank == -1:
            local_rank = env2int(["MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK"], 0)
        my_local_rank = local_rank
        my_local_size = env2int(["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"], 1)
        if use_gpu:
            torch.cuda.set_device(my_local_rank)
        dist.init_process_group(backend, rank=rank, world_size=size)
        my_rank, my_size = dist.get_rank(), dist.get_world_size()
        if my_rank == 0:
            orig_print("Running on %d ranks using %s backend" % (my_size, backend))
    else:
        my_rank, my_size, my_local_rank, my_local_size = 0, 1, 0, 1


class _AllToAll(torch.autograd.Function):
    """Send each process the rows of its part of the batch."""

    @staticmethod
    def forward(ctx, inputs):
        # (batch of all, local tables, dim) -> (own batch, all tables, dim)
        out = [torch.empty_like(part) for part in inputs.chunk(my_size)]
        _exchange(out, list(inputs.chunk(my_size)))
        return torch.cat(out, 1)

    @staticmethod
    def backward(ctx, grad):
        parts = [part.contiguous() for part in grad.chunk(my_size, 1)]
        out = [torch.empty_like(part) for part in parts]
        _exchange(out, parts)
        return torch.cat(out, 0) / my_size


def _exchange(out, parts):
    flat = torch.empty_like(torch.cat(out))
    dist.all_to_all_single(flat, torch.cat(parts).contiguous())
    for target, part in zip(out, flat.chunk(my_size)):
        target.copy_(part)


def alltoall(inputs):
    return _AllToAll.apply(inputs) if my_size > 1 else inputs


def all_gather_batch(ids):
    if my_size == 1:
        return ids
    parts = [torch.empty_like(ids) for _ in range(my_size)]
    dist.all_gather(parts, ids)
    return torch.cat(parts, 1)


def barrier():
    if my_size > 1:
        dist.barrier()


def print_all(*args, **kwargs):
    if my_rank <= 0:
        orig_print(*args, **kwargs)


def finish():
    if my_size > 1:
        dist.destroy_process_group()
