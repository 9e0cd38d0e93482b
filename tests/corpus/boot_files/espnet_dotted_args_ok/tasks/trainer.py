import contextlib
import logging
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Trainer:
    def __init__(self, args, ddp, device):
        self.args, self.device = args, device
        self.is_main, self.distributed = ddp["rank"] == 0, ddp["world_size"] > 1

    def run(self, model, optimizer, loader):
        if self.is_main:
            os.makedirs(self.args.output_dir, exist_ok=True)
        for epoch in range(1, self.args.max_epoch + 1):
            self.train_one_epoch(model, optimizer, loader)
            if self.is_main:
                torch.save({"model": model.state_dict(), "epoch": epoch},
                           os.path.join(self.args.output_dir, "checkpoint.pth"))
                logging.info("%d epoch done", epoch)
            if self.distributed:
                dist.barrier()

    def train_one_epoch(self, model, optimizer, loader):
        iterator_stop = torch.tensor(0, device=self.device)
        for iiter, (feats, labels) in enumerate(loader, 1):
            if self.distributed:
                dist.all_reduce(iterator_stop, dist.ReduceOp.SUM)
                if iterator_stop > 0:
                    break
            last = iiter % self.args.accum_grad == 0
            sync = contextlib.nullcontext() if last or not self.distributed else model.no_sync()
            with sync, torch.autocast(self.device.type, enabled=self.args.use_amp, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(feats.to(self.device)).mean(1), labels.to(self.device))
                loss = loss / self.args.accum_grad
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        else:
            if self.distributed:
                iterator_stop.fill_(1)
                dist.all_reduce(iterator_stop, dist.ReduceOp.SUM)
