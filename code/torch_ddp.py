"""A few steps of DistributedDataParallel on a toy model, for all three ways to start it.

Under torch.distributed.launch and torchrun this file is the boot file: each process is started with RANK, LOCAL_RANK,
WORLD_SIZE and MASTER_* in its environment. Under mp.spawn, main.py calls `train` in each process with the same values
as arguments.
"""

import argparse
import os
import signal
import sys
import time

import checkpoint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
BATCH = 20


class ToyModel(nn.Module):
    """Two linear layers, 10 → 10 → 5."""

    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        """Return the output for a batch, shape (batch, 5)."""
        return self.net2(self.relu(self.net1(x)))


def pick_device(local_rank, nproc):
    """Return (backend, device): NCCL where this node has a GPU for each of its processes, else Gloo on the CPU."""
    if torch.cuda.is_available() and nproc <= torch.cuda.device_count():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return "nccl", device
    return "gloo", torch.device("cpu")


def add_arguments(parser):
    """Declare what both boot files take; a folder for checkpoints may come as jobsubmit's variable, too."""
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--step_seconds", type=float, default=0.0, help="make each step take that long")
    parser.add_argument("--checkpoint_dir", default=os.environ.get("JOBSUBMIT_CHECKPOINT_DIR"))
    parser.add_argument("--save_every", type=int, default=1, help="steps from checkpoint to checkpoint")


def train(backend, device, args):
    """Train and print, per step, the loss averaged over all ranks: every rank prints the same number.

    With a folder for checkpoints it goes on after the newest one, exactly as if it had not been interrupted.
    """
    stop = checkpoint.StopAsked()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size} is ready: {backend} on {device}", flush=True)

    torch.manual_seed(0)  # the same model on every rank
    model = ToyModel().to(device)
    ddp_model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=args.lr, momentum=0.9)
    done = checkpoint.load(args.checkpoint_dir, model=model, optimizer=optimizer)
    if done:
        print(f"rank {rank} goes on after {done} steps", flush=True)

    data = torch.Generator().manual_seed(1 + rank)  # other data on every rank
    inputs = torch.randn(BATCH, 10, generator=data).to(device)
    labels = torch.randn(BATCH, 5, generator=data).to(device)
    for step in range(done + 1, args.steps + 1):
        time.sleep(args.step_seconds)
        optimizer.zero_grad()
        loss = loss_fn(ddp_model(inputs), labels)
        loss.backward()  # DDP averages the gradients over all ranks here
        optimizer.step()
        mean_loss = loss.detach().clone()
        dist.all_reduce(mean_loss)
        mean_loss /= world_size
        print(f"step {step} loss {mean_loss.item():.6f}", flush=True)
        stopping = stop.by_any_rank(device)
        if stopping or step % args.save_every == 0:
            checkpoint.save(args.checkpoint_dir, step, model=model, optimizer=optimizer)
        if stopping:
            print(f"rank {rank} was asked to end, and does after {step} steps", flush=True)
            finish()
            sys.exit(128 + signal.SIGTERM)

    assert_equal_on_all_ranks(model)
    print(f"rank {rank} done: all {world_size} ranks hold equal parameters", flush=True)


def assert_equal_on_all_ranks(model):
    """Raise AssertionError unless every rank holds rank 0's parameters, bit for bit."""
    for name, parameter in model.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        assert torch.equal(of_rank_0, parameter), f"{name} differs between ranks"


def finish():
    """End the process group once all ranks are done.

    Gloo's threads free the tensors of the last collectives, for which they need Python. If the group or Python ends
    before they got to it, the process hangs (torch 2.1) or aborts with "terminate called without an active exception"
    (torch 2.15): leave them a moment.
    """
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


def main():
    """Train as one process of a launcher."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    # A platform may add arguments of its own, so unknown ones are not an error.
    args, _ = parser.parse_known_args()
    backend, device = pick_device(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(backend)
    train(backend, device, args)
    finish()


if __name__ == "__main__":
    main()
