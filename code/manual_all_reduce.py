"""Average gradients by hand with all_reduce, beside DistributedDataParallel: the same gradients, and another speed.

Two mistakes are common: to add up and not to divide, which makes the step world_size times as large, and to average by
hand what DistributedDataParallel has averaged already. `jobsubmit report` shows both ways side by side: by hand nothing
is sent before all gradients are there, while DistributedDataParallel sends a bucket as soon as it is full.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ddp import finish, pick_device

try:
    from jobsubmit.profiling import sync  # times the block for `jobsubmit report`
except ImportError:

    def sync(name, nbytes=0):
        """Do nothing, where jobsubmit did not start this."""
        return nullcontext()


def network(width):
    """Return a model whose weights are the same on every rank."""
    torch.manual_seed(0)
    middle = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), *middle, nn.Linear(width, 5))


def average_gradients(model):
    """Replace each gradient by its mean over all ranks: one message for all of them, not one for each."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    message = torch.cat([gradient.reshape(-1) for gradient in gradients])
    with sync("by hand", message.nbytes):
        dist.all_reduce(message)  # the sum
    message /= dist.get_world_size()
    for gradient, mean in zip(gradients, message.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(mean.view_as(gradient))


def train(device, args):
    """Train two copies of a model on the same data, one each way, and compare their gradients in every step."""
    rank = dist.get_rank()
    by_hand, wrapped = network(args.width).to(device), network(args.width).to(device)
    ddp_model = DistributedDataParallel(wrapped, device_ids=[device.index] if device.type == "cuda" else None)
    optimizers = [torch.optim.SGD(model.parameters(), lr=args.lr) for model in (by_hand, wrapped)]
    data = torch.Generator().manual_seed(1 + rank)  # other data on every rank
    farthest = 0.0
    for step in range(1, args.steps + 1):
        inputs = torch.randn(args.batch, 10, generator=data).to(device)
        labels = torch.randn(args.batch, 5, generator=data).to(device)
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(ddp_model(inputs), labels).backward()
        nn.functional.mse_loss(by_hand(inputs), labels).backward()
        average_gradients(by_hand)
        for one, other in zip(by_hand.parameters(), wrapped.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)
            farthest = max(farthest, (one.grad - other.grad).abs().max().item())
        for optimizer in optimizers:
            optimizer.step()
        print(f"step {step}: gradients are equal", flush=True)
    print(f"rank {rank}: averaged by hand as DistributedDataParallel does, to {farthest:.1e}", flush=True)


def main():
    """Train as one process of a launcher."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers")
    args, _ = parser.parse_known_args()
    backend, device = pick_device(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(backend)
    train(device, args)
    finish()


if __name__ == "__main__":
    main()
