import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


def init_dist():
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29501"
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    os.environ["OMP_NUM_THREADS"] = "1"
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return rank, world


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seq", type=int, default=64)
    ap.add_argument("--layers", type=int, default=2)
    args = ap.parse_args()
    rank, world = init_dist()
    net = nn.LSTM(32, 32, num_layers=args.layers).cuda()
    net = nn.parallel.DistributedDataParallel(net, device_ids=[torch.cuda.current_device()])
    opt = torch.optim.Adam(net.parameters())
    for i in range(100):
        out, _ = net(torch.randn(args.seq, 4, 32, device="cuda"))
        opt.zero_grad()
        out.pow(2).mean().backward()
        opt.step()
        if rank == 0 and i % 10 == 0:
            print(i, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
