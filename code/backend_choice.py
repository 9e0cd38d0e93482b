"""NCCL or Gloo: which backend fits the hardware, and how fast its all_reduce is for messages of several sizes.

NCCL where every process has a GPU of its own; Gloo on CPUs, and for objects and barriers beside NCCL. Both at once:
init_process_group("cpu:gloo,cuda:nccl"), which sends each tensor the way that fits where it lies.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch_ddp import finish, pick_device


def seconds_of_all_reduce(size, device, repeats):
    """Return how long the all_reduce of a tensor takes, on the slowest rank: the median of some repeats."""
    tensor = torch.ones(max(1, size // 4), device=device)
    times = []
    for _ in range(repeats):
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
        tensor.fill_(1)
    slowest = torch.tensor(sorted(times)[repeats // 2], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def main():
    """Measure as one process of a launcher."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--largest", type=int, default=16 << 20, help="message, in bytes")
    args, _ = parser.parse_known_args()
    nproc = int(os.environ["LOCAL_WORLD_SIZE"])
    backend, device = pick_device(int(os.environ["LOCAL_RANK"]), nproc)
    gpus = torch.cuda.device_count()
    why = f"{gpus} GPUs for the {nproc} processes of this node"
    dist.init_process_group("cpu:gloo,cuda:nccl" if backend == "nccl" else backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} takes {backend}: {why}", flush=True)
    size = 1 << 10
    while size <= args.largest:
        seconds = seconds_of_all_reduce(size, device, args.repeats)
        bandwidth = size * 2 * (world_size - 1) / world_size / seconds / 1e6
        if rank == 0:
            print(
                f"{backend}: {size:>9} bytes in {seconds * 1e3:8.3f} ms, {bandwidth:8.1f} MB/s on the bus", flush=True
            )
        size *= 4
    finish()


if __name__ == "__main__":
    main()
