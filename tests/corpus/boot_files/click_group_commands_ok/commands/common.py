import os

import torch
import torch.distributed as dist


class Env:
    def __init__(self):
        self.rank = int(os.environ.get("RANK", 0))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.device = torch.device("cuda", self.local_rank)

    def __enter__(self):
        torch.cuda.set_device(self.device)
        if self.world_size > 1:
            dist.init_process_group("nccl", init_method="env://")
        return self

    def __exit__(self, *_):
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_main(self):
        return self.rank == 0

    def mean(self, value):
        if self.world_size > 1:
            dist.all_reduce(value)
            value /= self.world_size
        return value
