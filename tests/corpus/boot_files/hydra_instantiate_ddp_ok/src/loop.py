import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Loop:
    def __init__(self, cfg, model, make_optimizer):
        self.cfg = cfg
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank)
        self.model = DistributedDataParallel(model.to(self.device), device_ids=[self.local_rank])
        self.optimizer = make_optimizer(params=self.model.parameters())
        self.loader = self.get_train_dataloader()

    def get_train_dataloader(self):
        dataset = TensorDataset(*torch.load(self.cfg.data.path, map_location="cpu"))
        sampler = DistributedSampler(dataset, shuffle=True)
        return DataLoader(dataset, batch_size=self.cfg.data.batch_size, sampler=sampler)

    def step(self, x, y):
        loss = torch.nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self):
        for epoch in range(self.cfg.trainer.epochs):
            self.loader.sampler.set_epoch(epoch)
            for number, (x, y) in enumerate(self.loader):
                loss = self.step(x, y)
                if number % self.cfg.trainer.log_every == 0:
                    self.report(epoch, number, loss)

    def report(self, epoch, number, loss):
        mean = loss.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"{epoch}/{number}: {mean.item():.4f}")

    def save(self, path):
        if dist.get_rank() == 0:
            torch.save(self.model.module.state_dict(), path)
        dist.barrier()
