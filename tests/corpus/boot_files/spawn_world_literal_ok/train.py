import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

WORLD = 2


def example(rank, world_size, opts):
    dist.init_process_group("gloo", init_method=opts.init_method, rank=rank, world_size=2)
    assert world_size == dist.get_world_size()
    model = nn.Linear(10, 10).to(rank)
    ddp_model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    for _ in range(opts.steps):
        outputs = ddp_model(torch.randn(20, 10).to(rank))
        labels = torch.randn(20, 10).to(rank)
        optimizer.zero_grad()
        loss_fn(outputs, labels).backward()
        optimizer.step()
    norm = torch.zeros(1)
    for p in ddp_model.parameters():
        norm += p.grad.norm().cpu() ** 2
    dist.all_reduce(norm)
    if rank == 0:
        print("sum of squared gradient norms", norm.item())
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1)
    ap.add_argument("--init_method", default="tcp://127.0.0.1:23456")
    opts, _rest = ap.parse_known_args()
    mp.spawn(example, args=(WORLD, opts), nprocs=WORLD, join=True)


if __name__ == "__main__":
    main()
