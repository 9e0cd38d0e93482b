"""DistributedDataParallel whose number of processes may change while it trains: the boot file of an elastic job.

The data is one set that all processes share out, whatever their number is just now, so the gradient of a step, and with
it the loss curve, does not depend on that number. Whenever a node is lost or comes back, torchrun starts all processes
anew, and they go on after the newest checkpoint.
"""

import argparse
import os
import time

import checkpoint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ddp import ToyModel, add_arguments, finish, pick_device

SAMPLES = 60  # every number of processes from 1 to 6 divides it, so all shares are equal


def train(device, args):
    """Train on this process's share of the data, and print the loss over all of it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size} is ready", flush=True)
    torch.manual_seed(0)  # the same model and data on every rank
    model = ToyModel().to(device)
    inputs, labels = torch.randn(SAMPLES, 10).to(device), torch.randn(SAMPLES, 5).to(device)
    share = slice(rank, None, world_size)
    ddp_model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=args.lr, momentum=0.9)
    done = checkpoint.load(args.checkpoint_dir, model=model, optimizer=optimizer)
    for step in range(done + 1, args.steps + 1):
        time.sleep(args.step_seconds)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp_model(inputs[share]), labels[share])
        loss.backward()
        optimizer.step()
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        print(f"step {step} loss {mean_loss.item() / world_size:.6f} with {world_size} processes", flush=True)
        checkpoint.save(args.checkpoint_dir, step, model=model, optimizer=optimizer)


def main():
    """Train as one process of torchrun."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    args, _ = parser.parse_known_args()
    backend, device = pick_device(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(backend)
    train(device, args)
    finish()


if __name__ == "__main__":
    main()
