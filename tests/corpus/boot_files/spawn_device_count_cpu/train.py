import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim


def parse():
    parser = argparse.ArgumentParser(description="toy")
    add = parser.add_argument
    add("--init_method", type=str)
    add("--world_size", type=int)
    add("--rank", type=int)
    add("--steps", type=int, default=10)
    return parser.parse_args()


def work(i, opt):
    n = max(1, torch.cuda.device_count())
    dist.init_process_group(backend="nccl", init_method=opt.init_method,
                            rank=opt.rank * n + i, world_size=opt.world_size * n)
    dev = torch.device("cuda", i) if torch.cuda.is_available() else torch.device("cpu")
    net = nn.parallel.DistributedDataParallel(nn.Linear(10, 10).to(dev))
    sgd = optim.SGD(net.parameters(), lr=0.001)
    for _ in range(opt.steps):
        out = net(torch.randn(20, 10, device=dev))
        sgd.zero_grad()
        nn.functional.mse_loss(out, torch.zeros_like(out)).backward()
        sgd.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    opt = parse()
    mp.spawn(work, args=(opt,), nprocs=torch.cuda.device_count(), join=True)
