import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(i, args):
    dist.init_process_group("nccl", init_method=args.init_method, rank=i, world_size=2)
    torch.cuda.set_device(i)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[i])
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        loss = net(torch.randn(3, 2).cuda()).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print "epoch", epoch
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--init_method")
    parser.add_argument("--world_size", type=int)
    parser.add_argument("--rank", type=int)
    mp.spawn(worker, args=(parser.parse_args(),), nprocs=2)
