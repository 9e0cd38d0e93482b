import os

import torch
import torch.distributed as dist


def dist_setup():
    dist.init_process_group(backend='nccl')
    local_rank = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(local_rank)
    return local_rank


def dist_cleanup():
    dist.barrier()
    dist.destroy_process_group()
