import argparse
import functools
import os
import tempfile
from urllib.parse import urlparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size, init_method):
    url = urlparse(init_method)
    os.environ['MASTER_ADDR'] = url.hostname
    os.environ['MASTER_PORT'] = str(url.port)
    # initialize the process group
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


class ToyModel(nn.Module):
    def __init__(self):
        super(ToyModel, self).__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_basic(local_rank, rank, world_size, args):
    print(f"Running basic DDP example on rank {rank}.")
    setup(rank, world_size, args.init_method)
    model = ToyModel().to(local_rank)
    ddp_model = DDP(model, device_ids=[local_rank])
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=args.lr)
    for _ in range(args.steps):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10))
        labels = torch.randn(20, 5).to(local_rank)
        loss_fn(outputs, labels).backward()
        optimizer.step()
    cleanup()


def demo_checkpoint(local_rank, rank, world_size, args):
    print(f"Running DDP checkpoint example on rank {rank}.")
    setup(rank, world_size, args.init_method)
    model = ToyModel().to(local_rank)
    ddp_model = DDP(model, device_ids=[local_rank])
    checkpoint_path = os.path.join(tempfile.gettempdir(), "model.checkpoint")
    if local_rank == 0:
        # one process per node writes: each node has a disk of its own
        torch.save(ddp_model.state_dict(), checkpoint_path)
    dist.barrier()
    map_location = {'cuda:%d' % 0: 'cuda:%d' % local_rank}
    ddp_model.load_state_dict(torch.load(checkpoint_path, map_location=map_location, weights_only=True))
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=args.lr)
    optimizer.zero_grad()
    loss_fn(ddp_model(torch.randn(20, 10)), torch.randn(20, 5).to(local_rank)).backward()
    optimizer.step()
    dist.barrier()
    if local_rank == 0:
        os.remove(checkpoint_path)
    cleanup()


DEMOS = {"basic": demo_basic, "checkpoint": demo_checkpoint}


def worker(local_rank, demo_fn, n_gpus, args):
    demo_fn(local_rank, args.rank * n_gpus + local_rank, args.world_size * n_gpus, args)


def run_demo(demo_fn, n_gpus, args):
    mp.spawn(functools.partial(worker, demo_fn=demo_fn, n_gpus=n_gpus, args=args), nprocs=n_gpus, join=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method", required=True)
    parser.add_argument("--world_size", type=int, required=True, help="nodes")
    parser.add_argument("--rank", type=int, required=True, help="of this node")
    parser.add_argument("--demo", choices=sorted(DEMOS), default="basic")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    n_gpus = torch.cuda.device_count()
    assert n_gpus >= 2, f"Requires at least 2 GPUs to run, but got {n_gpus}"
    run_demo(DEMOS[args.demo], n_gpus, args)
