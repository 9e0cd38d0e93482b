import argparse
import os

import torch
import torch.distributed as dist

from .engine import fit


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=0.1)
    args = p.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).cuda(), device_ids=[local])
    fit(model, torch.optim.SGD(model.parameters(), lr=args.lr), args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
