import pickle

import torch
import torch.distributed as dist

_LOCAL_PROCESS_GROUP = None


def get_world_size():
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


def get_rank():
    if not dist.is_available() or not dist.is_initialized():
        return 0
    return dist.get_rank()


def get_local_rank():
    if not dist.is_available() or not dist.is_initialized():
        return 0
    return dist.get_rank(group=_LOCAL_PROCESS_GROUP)


def set_local_group(group):
    global _LOCAL_PROCESS_GROUP
    _LOCAL_PROCESS_GROUP = group


def is_main_process():
    return get_rank() == 0


def synchronize():
    if get_world_size() == 1:
        return
    dist.barrier(device_ids=[torch.cuda.current_device()])


def gather(data, dst=0):
    if get_world_size() == 1:
        return [data]
    group = _gloo_group()
    rank = dist.get_rank(group=group)
    if rank == dst:
        output = [None] * dist.get_world_size(group)
        dist.gather_object(data, output, dst=dst, group=group)
        return output
    dist.gather_object(data, None, dst=dst, group=group)
    return []


_GLOO = None


def _gloo_group():
    global _GLOO
    if _GLOO is None:
        _GLOO = dist.new_group(backend="gloo")
    return _GLOO


def shared_seed():
    seed = int.from_bytes(pickle.dumps(1)[:2], "little")
    if get_world_size() == 1:
        return seed
    box = [seed]
    dist.broadcast_object_list(box, src=0)
    return box[0]
