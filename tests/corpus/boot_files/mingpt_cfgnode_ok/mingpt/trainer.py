import time
from collections import defaultdict

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import RandomSampler
from torch.utils.data.dataloader import DataLoader

from mingpt.utils import CfgNode as CN


class Trainer:
    @staticmethod
    def get_default_config():
        C = CN()
        C.num_workers = 4
        C.max_iters = 2000
        C.batch_size = 64
        C.learning_rate = 3e-4
        C.grad_norm_clip = 1.0
        return C

    def __init__(self, config, model, train_dataset):
        self.config = config
        self.train_dataset = train_dataset
        self.callbacks = defaultdict(list)
        self.device = torch.device('cuda', torch.cuda.current_device())
        self.raw_model = model.to(self.device)
        self.model = DistributedDataParallel(self.raw_model, device_ids=[self.device])
        self.optimizer = torch.optim.AdamW(self.raw_model.parameters(), lr=config.learning_rate)
        self.iter_num = 0
        self.iter_dt = 0.0

    def set_callback(self, onevent, callback):
        self.callbacks[onevent] = [callback]

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        config = self.config
        train_loader = DataLoader(
            self.train_dataset,
            sampler=RandomSampler(self.train_dataset, replacement=True, num_samples=int(1e10)),
            shuffle=False,
            pin_memory=True,
            batch_size=config.batch_size,
            num_workers=config.num_workers,
        )
        self.model.train()
        iter_time = time.time()
        data_iter = iter(train_loader)
        while self.iter_num < config.max_iters:
            x, y = [t.to(self.device) for t in next(data_iter)]
            logits, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_norm_clip)
            self.optimizer.step()
            self.trigger_callbacks('on_batch_end')
            self.iter_num += 1
            self.iter_dt, iter_time = time.time() - iter_time, time.time()
