import argparse
import os

import torch
import torch.distributed as dist


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def main():
    args = get_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(4, 4).cuda(), device_ids=[local])
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    for _ in range(10):
        loss = model(torch.randn(2, 4).cuda()).sum()
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()
    print("rank", os.environ["RANK"], "done"


if __name__ == "__main__":
    main()
