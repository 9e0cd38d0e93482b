import torch.distributed as dist


def all_reduce(tensors, average=True):
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=False)
    if average:
        world_size = dist.get_world_size()
        for tensor in tensors:
            tensor.mul_(1.0 / world_size)
    return tensors


def is_master_proc(num_gpus=8):
    """Determines if the current process is the master process."""
    if dist.is_initialized():
        return dist.get_rank() % num_gpus == 0
    return True
