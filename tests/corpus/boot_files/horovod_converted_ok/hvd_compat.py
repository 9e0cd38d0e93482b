"""The part of the Horovod interface that we used, on torch.distributed."""
import os

import torch
import torch.distributed as dist


def init():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def shutdown():
    dist.destroy_process_group()


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def local_rank():
    return int(os.environ.get("LOCAL_RANK", 0))


def allreduce(t):
    t = t.clone()
    dist.all_reduce(t)
    return t / size()


def broadcast_parameters(state, root_rank):
    for _, t in sorted(state.items()):
        dist.broadcast(t, src=root_rank)


class DistributedOptimizer:
    def __init__(self, inner, params):
        self.inner = inner
        self.params = [p for p in params if p.requires_grad]

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        for p in self.params:
            if p.grad is None:
                continue
            p.grad.mul_(1.0 / size())
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        self.inner.step()
