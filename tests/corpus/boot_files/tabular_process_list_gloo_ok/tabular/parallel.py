import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class PartitionSampler(Sampler):
    def __init__(self, n, rank, world):
        self.n, self.rank, self.world, self.epoch = n, rank, world, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.n // self.world

    def __iter__(self):
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[self.rank:len(self) * self.world:self.world])


@torch.no_grad()
def sync_model(model):
    """Against drift of buffers: every process goes on with the first one's."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
