import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import distributed_utils


class Trainer:
    """Forward, backward, logging; gradients are scaled by the sample size of all workers."""

    def __init__(self, args, task, model, criterion):
        self.args, self.task, self.criterion = args, task, criterion
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self.device)
        self._wrapped = None
        self.optimizer = torch.optim.Adam(self._model.parameters(), lr=args.lr[0])
        self.epoch, self.num_updates = 1, 0

    @property
    def model(self):
        if self._wrapped is None:
            if self.args.distributed_world_size > 1:
                self._wrapped = DistributedDataParallel(
                    self._model, device_ids=[self.args.device_id], bucket_cap_mb=self.args.bucket_cap_mb
                )
            else:
                self._wrapped = self._model
        return self._wrapped

    def train_step(self, sample):
        self.model.train()
        source, target = (t.to(self.device) for t in sample)
        loss = self.criterion(self.model(source).transpose(1, 2), target)
        sample_size = target.numel()
        loss.backward()
        logs = {"loss": loss.item(), "sample_size": sample_size}
        if self.args.distributed_world_size > 1:
            logs = distributed_utils.all_reduce_dict(logs, self.device)
        # DDP has averaged over workers; back to a sum, then over all samples
        scale = self.args.distributed_world_size / logs["sample_size"]
        for p in self._model.parameters():
            if p.grad is not None:
                p.grad.mul_(scale)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self.args.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_updates += 1
        return logs

    def save_checkpoint(self, directory):
        if distributed_utils.is_master(self.args):
            os.makedirs(directory, exist_ok=True)
            state = {"model": self._model.state_dict(), "epoch": self.epoch, "num_updates": self.num_updates}
            torch.save(state, os.path.join(directory, "checkpoint_last.pt"))
        if dist.is_initialized():
            dist.barrier()

    def load_checkpoint(self, name):
        path = name if os.path.isabs(name) else os.path.join(self.args.save_dir, name)
        if not os.path.exists(path):
            return None
        state = torch.load(path, map_location="cpu")
        self._model.load_state_dict(state["model"])
        self.epoch, self.num_updates = state["epoch"] + 1, state["num_updates"]
        return state
