import torch
import torch.distributed as dist


def setup(local_rank):
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", init_method="env://")
    dist.barrier(device_ids=[local_rank])


def is_main():
    return dist.get_rank() == 0


def teardown():
    dist.barrier()
    dist.destroy_process_group()
