"""nn.DataParallel, and why not: it knows the GPUs of one process, and nothing of the other processes.

It copies the model to each GPU in every step, gathers all outputs on the first one, and shares one Python among them.
Started as several processes, or on several nodes, it trains as many models as there are processes, and none of them
learns from the others. The sample shows that, beside DistributedDataParallel on the same data.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ddp import ToyModel, finish, pick_device


def train(model, device, args):
    """Train a model on this rank's data, and return how far its parameters are from those of rank 0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = torch.Generator().manual_seed(1 + dist.get_rank())  # other data on every rank
    for _ in range(args.steps):
        inputs = torch.randn(args.batch, 10, generator=data).to(device)
        labels = torch.randn(args.batch, 5, generator=data).to(device)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    own = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    of_rank_0 = own.clone()
    dist.broadcast(of_rank_0, src=0)
    return (own - of_rank_0).abs().max().item()


def main():
    """Train as one process of a launcher, first with DataParallel, then with DistributedDataParallel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=20)
    args, _ = parser.parse_known_args()
    backend, device = pick_device(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(backend)
    rank, device_ids = dist.get_rank(), [device.index] if device.type == "cuda" else None
    torch.manual_seed(0)
    apart = train(nn.DataParallel(ToyModel().to(device), device_ids=device_ids), device, args)
    torch.manual_seed(0)
    together = train(DistributedDataParallel(ToyModel().to(device), device_ids=device_ids), device, args)
    assert together == 0.0, "DistributedDataParallel trains one model"
    assert rank == 0 or apart > 0.0, "DataParallel trains a model in each process"
    print(f"rank {rank}: from the model of rank 0, DataParallel {apart:.4f}, DistributedDataParallel {together:.4f}")
    finish()


if __name__ == "__main__":
    main()
