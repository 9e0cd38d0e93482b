import os.path as osp

import torch


class Runner:
    def __init__(self, model, optimizer, work_dir, rank, meta=None):
        self.model, self.optimizer, self.work_dir, self.rank, self.meta = model, optimizer, work_dir, rank, meta
        self.epoch = self.iter = 0
        self._hooks = []

    def register_hook(self, hook):
        self._hooks.append(hook)

    def call_hook(self, name):
        for hook in self._hooks:
            getattr(hook, name)(self)

    def resume(self, path):
        ckpt = torch.load(path, map_location="cpu")
        getattr(self.model, "module", self.model).load_state_dict(ckpt["state_dict"])
        self.optimizer.load_state_dict(ckpt["optimizer"])
        self.epoch = ckpt["epoch"]

    def save_checkpoint(self):
        path = osp.join(self.work_dir, "epoch_%d.pth" % (self.epoch + 1))
        torch.save({"state_dict": getattr(self.model, "module", self.model).state_dict(), "epoch": self.epoch + 1,
                    "optimizer": self.optimizer.state_dict(), "meta": self.meta}, path)

    def run(self, loader, max_epochs):
        self.data_loader = loader
        while self.epoch < max_epochs:
            self.model.train()
            self.call_hook("before_epoch")
            for img, target in loader:
                self.loss = self.model(img.cuda(non_blocking=True), target.cuda(non_blocking=True))
                self.optimizer.zero_grad()
                self.loss.backward()
                self.optimizer.step()
                self.iter += 1
                self.call_hook("after_iter")
            self.call_hook("after_epoch")
            self.epoch += 1
