"""A key-value store that all processes share: TCPStore, for what is no tensor and no work for all ranks at once.

Rank 0 keeps the store, on its node; every process can set, get, count up and wait for a key.
"""

import os
from datetime import timedelta

import torch.distributed as dist
from torch_ddp import finish


def shared_store():
    """Return a store that rank 0 keeps at a free port, which it announces to the others."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    host, store, place = os.environ["MASTER_ADDR"], None, [None]
    if rank == 0:
        store = dist.TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)
        place = [store.port]
    dist.broadcast_object_list(place)
    return store or dist.TCPStore(host, place[0], world_size, is_master=False, timeout=timedelta(seconds=60))


def main():
    """Share a counter, a value of each rank, and a key that some wait for, as one process of torchrun."""
    dist.init_process_group("gloo")
    rank, world_size, node = dist.get_rank(), dist.get_world_size(), os.environ["GROUP_RANK"]
    store = shared_store()
    store.set(f"node of rank {rank}", node)
    number = store.add("arrived", 1)
    print(f"rank {rank} on node {node} came as number {number} of {world_size}", flush=True)
    if number == world_size:
        store.set("all are there", "yes")  # the others wait for that
    store.wait(["all are there"], timedelta(seconds=60))
    nodes = [store.get(f"node of rank {other}").decode() for other in range(world_size)]
    print(
        f"rank {rank} read: ranks {', '.join(map(str, range(world_size)))} are on nodes {', '.join(nodes)}", flush=True
    )
    dist.barrier()  # the store ends with rank 0
    finish()


if __name__ == "__main__":
    main()
