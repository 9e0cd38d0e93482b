"""Epochs over a data set that all processes share out: DataLoader, DistributedSampler and set_epoch.

Each process sees another share of the data, and with set_epoch another order in each epoch. Without it every epoch has
the order of the first: nothing fails, the training is only worse.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_ddp import ToyModel, finish, pick_device

SAMPLES = 240  # a multiple of the number of processes: else the sampler repeats some to make the shares equal


def train(device, args):
    """Train for some epochs, and print the loss over all of the data."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = torch.Generator().manual_seed(0)  # the same data set on every rank, as if read from the same file
    inputs, labels = torch.randn(SAMPLES, 10, generator=data), torch.randn(SAMPLES, 5, generator=data)
    dataset = TensorDataset(inputs, labels, torch.arange(SAMPLES))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler)

    torch.manual_seed(0)  # the same model on every rank
    model = ToyModel().to(device)
    ddp_model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=args.lr, momentum=0.9)
    orders = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen, total, order = torch.zeros(SAMPLES, device=device), torch.zeros((), device=device), []
        for batch, wanted, numbers in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp_model(batch.to(device)), wanted.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(numbers)
            seen[numbers.to(device)] += 1
            order += numbers.tolist()
        dist.all_reduce(total)
        dist.all_reduce(seen)
        assert bool((seen == 1).all()), "each sample must be seen once an epoch, by one process"
        assert order not in orders, "each epoch must have an order of its own"
        orders.append(order)
        print(f"epoch {epoch} loss {total.item() / SAMPLES:.6f}, its first samples: {order[:3]}", flush=True)
    print(f"rank {rank} of {world_size} saw {len(orders[0])} of {SAMPLES} samples an epoch", flush=True)


def main():
    """Train as one process of a launcher."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=10, help="samples of a step, per process")
    args, _ = parser.parse_known_args()
    backend, device = pick_device(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(backend)
    train(device, args)
    finish()


if __name__ == "__main__":
    main()
