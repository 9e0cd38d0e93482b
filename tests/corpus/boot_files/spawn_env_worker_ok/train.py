"""mp.spawn, and the helper library wants torchrun's variables: the worker writes them before it calls it."""
import argparse
import os

import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

import distributed as du
from dataset import RandomPairs


def run(local_rank, nprocs, args):
    du.export_environment(local_rank, nprocs, args)
    du.init()
    device = du.device()
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    model = DDP(model, device_ids=[device.index])
    data = RandomPairs(args.size)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = du.all_mean(loss.detach())
        if du.is_primary():
            print(f"epoch {epoch} loss {mean.item():.4f}")
    if du.is_primary():
        torch.save(model.module.state_dict(), args.out)
    du.synchronize()
    du.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", default="/cache/model.pt")
    for name, kind in (("init_method", str), ("world_size", int), ("rank", int)):
        parser.add_argument("--" + name, type=kind, required=True)
    args = parser.parse_args()
    nprocs = torch.cuda.device_count()
    mp.spawn(run, args=(nprocs, args), nprocs=nprocs)
