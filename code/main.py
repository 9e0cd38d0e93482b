"""Start the toy training of torch_ddp.py with mp.spawn, one process per accelerator: the boot file of mode `spawn`.

The platform gives --world_size and --rank, which count NODES, and --init_method. This file multiplies by the number of
processes of its node.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch_ddp import add_arguments, finish, pick_device, train


def processes_of_this_node():
    """Return how many processes this node runs: the number it is given, else one per GPU, else one."""
    given = os.environ.get("NPROC_PER_NODE") or os.environ.get("MA_NUM_GPUS") or "0"
    return int(given) or torch.cuda.device_count() or 1


def worker(local_rank, nproc, args):
    """Train as one process: node ranks become process ranks here."""
    backend, device = pick_device(local_rank, nproc)
    dist.init_process_group(
        backend,
        init_method=args.init_method,
        world_size=args.world_size * nproc,
        rank=args.rank * nproc + local_rank,
    )
    train(backend, device, args)
    finish()


def main():
    """Spawn the processes of this node and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world_size", type=int, required=True, help="number of nodes")
    parser.add_argument("--rank", type=int, required=True, help="index of this node")
    parser.add_argument("--init_method", required=True, help="tcp://host:port of node 0")
    add_arguments(parser)
    # A platform may add arguments of its own, so unknown ones are not an error.
    args, _ = parser.parse_known_args()
    nproc = processes_of_this_node()
    mp.spawn(worker, args=(nproc, args), nprocs=nproc)


if __name__ == "__main__":
    main()
