import os
import re

import torch
import torch.distributed as dist


def export_environment(local_rank, nprocs, args):
    host, port = re.fullmatch(r"tcp://(.+):(\d+)", args.init_method).groups()
    os.environ["MASTER_ADDR"] = host
    os.environ["MASTER_PORT"] = port
    os.environ["LOCAL_RANK"] = str(local_rank)
    os.environ["RANK"] = str(args.rank * nprocs + local_rank)
    os.environ["WORLD_SIZE"] = str(args.world_size * nprocs)


def init():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))


def device():
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def is_primary():
    return dist.get_rank() == 0


def all_mean(value):
    value = value.clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def synchronize():
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    dist.barrier()


def shutdown():
    dist.destroy_process_group()
