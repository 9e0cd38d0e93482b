import os

import torch
import torch.distributed as dist

try:
    import horovod.torch as hvd
except ImportError:
    hvd = None


def is_global_master(args):
    return args.rank == 0


def is_local_master(args):
    return args.local_rank == 0


def is_master(args, local=False):
    return is_local_master(args) if local else is_global_master(args)


def is_using_distributed():
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"]) > 1
    if "SLURM_NTASKS" in os.environ:
        return int(os.environ["SLURM_NTASKS"]) > 1
    return False


def world_info_from_env():
    local_rank = 0
    for v in ("LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        if v in os.environ:
            local_rank = int(os.environ[v])
            break
    global_rank = 0
    for v in ("RANK", "PMI_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        if v in os.environ:
            global_rank = int(os.environ[v])
            break
    world_size = 1
    for v in ("WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        if v in os.environ:
            world_size = int(os.environ[v])
            break
    return local_rank, global_rank, world_size


def init_distributed_device(args):
    args.distributed = False
    args.world_size, args.rank, args.local_rank = 1, 0, 0
    if args.dist_backend is None:
        args.dist_backend = {"cuda": "nccl", "hpu": "hccl"}.get(args.device.split(":")[0], "gloo")
    if args.dist_url is None:
        args.dist_url = "env://"
    if args.horovod:
        assert hvd is not None, "Horovod is not installed"
        hvd.init()
        args.local_rank, args.rank, args.world_size = int(hvd.local_rank()), hvd.rank(), hvd.size()
        args.distributed = True
    elif is_using_distributed():
        if "SLURM_PROCID" in os.environ and "RANK" not in os.environ:
            args.local_rank, args.rank, args.world_size = world_info_from_env()
            os.environ["LOCAL_RANK"] = str(args.local_rank)
            os.environ["RANK"] = str(args.rank)
            os.environ["WORLD_SIZE"] = str(args.world_size)
            dist.init_process_group(
                backend=args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank
            )
        else:
            args.local_rank, _, _ = world_info_from_env()
            dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url)
            args.world_size = dist.get_world_size()
            args.rank = dist.get_rank()
        args.distributed = True
    if args.device.startswith("cuda") and torch.cuda.is_available():
        if args.distributed and not args.no_set_device_rank:
            device = "cuda:%d" % args.local_rank
        else:
            device = "cuda:0"
        torch.cuda.set_device(device)
    else:
        device = "cpu"
    args.device = device
    return torch.device(device)


def broadcast_object(args, obj, src=0):
    if args.horovod:
        return hvd.broadcast_object(obj, root_rank=src)
    objects = [obj] if args.rank == src else [None]
    dist.broadcast_object_list(objects, src=src)
    return objects[0]
