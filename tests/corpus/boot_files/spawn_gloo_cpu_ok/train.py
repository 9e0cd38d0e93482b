import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def get_logger(rank):
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format=f"[{rank}] %(message)s")
    return logging.getLogger("tabular")


def make_data(n):
    g = torch.Generator().manual_seed(7)
    x = torch.randn(n, 32, generator=g)
    return TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())


def worker(index, args):
    world_size = args.world_size * args.nprocs
    rank = args.rank * args.nprocs + index
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(index)
    device = torch.device("cuda", index) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=args.init_method, world_size=world_size, rank=rank)
    log = get_logger(rank)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.nprocs))

    data = make_data(args.samples)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(32, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 1)).to(device)
    model = DistributedDataParallel(model, device_ids=[index] if on_gpu else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        mean = torch.zeros((), device=device)
        for x, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean += loss.detach() / len(loader)
        dist.all_reduce(mean)
        log.info("epoch %d: %.4f", epoch, mean.item() / world_size)
    if rank == 0 and args.out:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nprocs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", default=None)
    platform = parser.add_argument_group("platform")
    platform.add_argument("--init_method", default="tcp://127.0.0.1:6060")
    platform.add_argument("--world_size", type=int, default=1)
    platform.add_argument("--rank", type=int, default=0)
    args = parser.parse_args()
    mp.spawn(worker, args=(args,), nprocs=args.nprocs, join=True)


if __name__ == "__main__":
    main()
