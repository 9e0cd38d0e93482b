"""The same data on all nodes, and each process reads another part of it: a stream, sharded by rank and loader worker.

For data that comes as a stream (files, records) there is no sampler. Each process must leave out what the others read,
and so must each worker of its DataLoader: a worker that only looks at the rank reads everything that its sisters read.
"""

import argparse
import os
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch_ddp import ToyModel, finish, pick_device

RECORDS = 480  # a multiple of processes x workers x batch: else some end their epoch before the others


class Records(IterableDataset):
    """Yield (number, input, label) of the records that are this process's and this worker's."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        """Read everything, as from a file that lies on every node, and keep each n-th."""
        worker = get_worker_info()
        workers, index = (worker.num_workers, worker.id) if worker else (1, 0)
        return islice(self.read(), self.rank * workers + index, None, self.world_size * workers)

    def read(self):
        """Yield all records."""
        data = torch.Generator().manual_seed(0)
        for number in range(RECORDS):
            yield number, torch.randn(10, generator=data), torch.randn(5, generator=data)


def main():
    """Train as one process of a launcher, and show that every record was read once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="loader processes, per training process")
    args, _ = parser.parse_known_args()
    backend, device = pick_device(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(ToyModel().to(device), device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    seen = torch.zeros(RECORDS, device=device)
    for numbers, inputs, labels in DataLoader(
        Records(rank, world_size), batch_size=args.batch, num_workers=args.workers
    ):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs.to(device)), labels.to(device)).backward()
        optimizer.step()
        seen[numbers.to(device)] += 1
    own = int(seen.sum().item())
    dist.all_reduce(seen)
    assert bool((seen == 1).all()), "each record must be read once, by one process"
    print(f"rank {rank} of {world_size} read {own} records; all {RECORDS} were read once", flush=True)
    finish()


if __name__ == "__main__":
    main()
