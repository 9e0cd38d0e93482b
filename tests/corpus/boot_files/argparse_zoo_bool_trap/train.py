import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def str2bool(v):
    if isinstance(v, bool):
        return v
    if v.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if v.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError("Boolean value expected.")


def parse():
    p = argparse.ArgumentParser(prog="zoo")
    p.add_argument("--ema", action=argparse.BooleanOptionalAction, default=False)
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--use-bn", type=str2bool, nargs="?", const=True, default=True)
    p.add_argument("--pin", type=bool, default=False)
    p.add_argument("--betas", type=json.loads, default=[0.9, 0.999])
    p.add_argument("--milestones", nargs="+", type=int, default=[10])
    p.add_argument("--extra", action="append", default=[])
    p.add_argument("--level", type=int, choices=[0, 1, 2], default=0)
    p.add_argument("-v", "--verbose", action="count", default=0)
    p.add_argument("-l", "--lr", type=float, required=True)
    p.add_argument("--out", type=Path, default=Path("out"))
    prec = p.add_mutually_exclusive_group(required=True)
    prec.add_argument("--half", action="store_true")
    prec.add_argument("--quant", choices={"int8", "int4"})
    return p.parse_args()


def main():
    a = parse()
    lr_dev = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(lr_dev)
    dist.init_process_group(backend="nccl")
    data = TensorDataset(torch.randn(256, 8))
    train = DataLoader(data, 16, sampler=DistributedSampler(data, shuffle=True, seed=3), pin_memory=a.pin)
    val = DataLoader(data, 16, sampler=DistributedSampler(data, shuffle=False))
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).cuda(), device_ids=[lr_dev])
    opt = torch.optim.Adam(net.parameters(), lr=a.lr, betas=tuple(a.betas))
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, a.milestones)
    for epoch in range(5):
        train.sampler.set_epoch(epoch)
        for (x,) in train:
            loss = net(x.cuda()).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        with torch.no_grad():
            tot = sum(net.module(x.cuda()).sum() for (x,) in val)
        dist.reduce(tot, dst=0)
        if dist.get_rank() == 0 and a.verbose:
            print(epoch, tot.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
