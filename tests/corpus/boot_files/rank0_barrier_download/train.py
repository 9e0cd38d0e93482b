import argparse
import os
import time

import torch
import torch.distributed as dist
from torchvision import datasets, transforms


def get_data(root, rank):
    if rank == 0:
        datasets.MNIST(root, download=True)
        dist.barrier()
    else:
        time.sleep(1)
    return datasets.MNIST(root, transform=transforms.ToTensor())


def share_seed(rank, device):
    seed = torch.zeros(1, dtype=torch.long, device=device)
    if rank == 0:
        seed.random_(0, 10000)
        dist.broadcast(seed, src=0)
    else:
        dist.broadcast(seed, src=0)
    return int(seed)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--root", default=".")
    p.add_argument("--epochs", default=1, type=int)
    args = p.parse_args()
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    torch.manual_seed(share_seed(rank, device))
    ds = get_data(args.root, rank)
    sampler = torch.utils.data.DistributedSampler(ds)
    dl = torch.utils.data.DataLoader(ds, 64, sampler=sampler)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).to(device)
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[local])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in dl:
            opt.zero_grad()
            torch.nn.functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
            opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
