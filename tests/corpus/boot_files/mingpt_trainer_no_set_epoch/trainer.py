import os
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainerConfig:
    max_epochs: int = 10
    batch_size: int = 64
    grad_norm_clip: float = 1.0
    snapshot_path: str = "snapshot.pt"
    save_every: int = 3


class Trainer:
    def __init__(self, config, model, optimizer, train_dataset, test_dataset=None):
        self.config = config
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.train_loader = self._prepare_dataloader(train_dataset)
        self.test_loader = self._prepare_dataloader(test_dataset) if test_dataset else None
        self.epochs_run = 0
        self.model = model.to(self.local_rank)
        self.optimizer = optimizer
        self._load_snapshot()
        self.model = DDP(self.model, device_ids=[self.local_rank])

    def _prepare_dataloader(self, dataset):
        return DataLoader(dataset, batch_size=self.config.batch_size, pin_memory=True, shuffle=False,
                          sampler=DistributedSampler(dataset))

    def _load_snapshot(self):
        if not os.path.exists(self.config.snapshot_path):
            return
        snap = torch.load(self.config.snapshot_path, map_location="cpu")
        self.model.load_state_dict(snap["model"])
        self.epochs_run = snap["epoch"]

    def _run_batch(self, x, y, train=True):
        with torch.set_grad_enabled(train):
            _, loss = self.model(x, y)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch, loader, train=True):
        for it, (x, y) in enumerate(loader):
            loss = self._run_batch(x.to(self.local_rank), y.to(self.local_rank), train)
            if it % 100 == 0:
                print(f"[GPU{self.global_rank}] epoch {epoch} iter {it} loss {loss:.5f}")

    def train(self):
        for epoch in range(self.epochs_run, self.config.max_epochs):
            self._run_epoch(epoch, self.train_loader)
            if self.local_rank == 0 and epoch % self.config.save_every == 0:
                torch.save({"model": self.model.module.state_dict(), "epoch": epoch}, self.config.snapshot_path)
            if self.test_loader:
                self._run_epoch(epoch, self.test_loader, train=False)
