import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, args):
        self.args = args
        self.local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local)
        dist.init_process_group("nccl")
        self.world = dist.get_world_size()
        self.model = DDP(torch.nn.Linear(6, 6).cuda(), device_ids=[self.local])
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr)

    def sync_grads(self):
        for p in self.model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad.div_(self.world)

    def metric(self, value):
        value = value.detach().clone()
        dist.all_reduce(value)
        return value.item() / self.world

    def fit(self):
        for step in range(self.args.steps):
            x = torch.randn(8, 6, device="cuda")
            with torch.autocast("cuda", enabled=self.args.fp16):
                loss = self.model(x).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.sync_grads()
            self.opt.step()
            m = self.metric(loss)
            if self.args.debug and dist.get_rank() == 0:
                print(step, m)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--fp16", type=bool, default=True)
    parser.add_argument("--debug", action="store_true")
    Trainer(parser.parse_args()).fit()
