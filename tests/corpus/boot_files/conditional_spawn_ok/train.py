import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def run(local_rank, world_size, args, launched=False):
    if not launched:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = "29500"
        os.environ["RANK"] = str(local_rank)
        os.environ["WORLD_SIZE"] = str(world_size)
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    model = DDP(torch.nn.Linear(16, 16).cuda(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        loss = model(torch.randn(32, 16).cuda(local_rank)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch={epoch} loss={loss.item():.3f}")
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=1)
    args = p.parse_args()
    if "LOCAL_RANK" in os.environ:
        run(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]), args, launched=True)
        return
    n = torch.cuda.device_count()
    mp.spawn(run, args=(n, args), nprocs=n)


if __name__ == "__main__":
    main()
