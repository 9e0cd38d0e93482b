"""A training whose timing is to be told: as large, as slow and as odd as its arguments say."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class OwnClock:
    """Time the communication of each step with a hook of our own: from when the last gradients go off to the end."""

    def __init__(self) -> None:
        self.last_start = self.last_end = 0.0
        self.exposed: list[float] = []

    def hook(self, state, bucket):  # torch wants its own types here, or none
        def done(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            self.last_end = time.perf_counter()
            return future.value()

        future = allreduce_hook(None, bucket)  # it divides first: that is computing
        self.last_start = time.perf_counter()
        return future.then(done)

    def end_backward(self) -> None:
        self.exposed.append(self.last_end - self.last_start)


class Slow(nn.Module):
    """Take a while in the backward pass."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.seconds and x.requires_grad:
            x.register_hook(lambda gradient: time.sleep(self.seconds))
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--slow_rank", type=int, default=-1)
    parser.add_argument("--slow_ms", type=float, default=30.0)
    parser.add_argument("--slow_where", choices=["data", "backward"], default="data")
    parser.add_argument("--out", default="", help="folder for what this measured itself")
    parser.add_argument("--own_hook", type=int, default=0)
    parser.add_argument("--view", type=int, default=0, help="gradients lie in the buckets")
    parser.add_argument("--vary", type=int, default=0, help="make the steps unlike each other")
    parser.add_argument("--hide", type=int, default=0, help="take away what the timing reads of torch")
    parser.add_argument("--world_size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--init_method", default="")
    args, _ = parser.parse_known_args()
    if args.hide:
        del DistributedDataParallel._set_ddp_runtime_logging_sample_rate
    if "LOCAL_RANK" in os.environ:
        dist.init_process_group("gloo")
        train(args)
        return
    nproc = int(os.environ["NPROC_PER_NODE"])
    torch.multiprocessing.spawn(spawned, args=(nproc, args), nprocs=nproc)


def spawned(local_rank: int, nproc: int, args: argparse.Namespace) -> None:
    rank = args.rank * nproc + local_rank
    dist.init_process_group("gloo", init_method=args.init_method, world_size=args.world_size * nproc, rank=rank)
    train(args)


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    is_slow = rank == args.slow_rank
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pause = args.slow_ms / 1000 if is_slow else 0.0
    layers = [layer for _ in range(args.layers) for layer in (nn.Linear(args.width, args.width), nn.ReLU())]
    model = nn.Sequential(layers[0], Slow(pause if args.slow_where == "backward" else 0.0), *layers[1:])
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=bool(args.view))
    clock = OwnClock()
    dice = random.Random(rank)
    if args.own_hook:
        ddp.register_comm_hook(None, clock.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    begun = 0.0
    for step in range(args.steps):
        if step == 5:
            dist.barrier()
            begun = time.perf_counter()
        if args.slow_where == "data":
            time.sleep(pause)
        optimizer.zero_grad()
        batch = args.batch * dice.randrange(1, 8) if args.vary else args.batch
        time.sleep(dice.uniform(0, 0.1) if args.vary else 0)  # then another rank waits
        loss: torch.Tensor = ddp(torch.randn(batch, args.width)).square().mean()
        loss.backward()
        clock.end_backward()
        optimizer.step()
        print(f"step {step + 1}", flush=True)
    took = time.perf_counter() - begun
    if args.out:
        told = json.dumps({"seconds": took, "exposed": clock.exposed})
        Path(args.out, f"rank-{rank}.json").write_text(told)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
