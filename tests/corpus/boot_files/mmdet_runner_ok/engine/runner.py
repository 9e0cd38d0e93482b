import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from . import dist, hooks  # noqa: F401  (hooks register themselves)
from .registry import HOOKS


class BoxDataset(Dataset):
    def __init__(self, root, length):
        self.root, self.length = root, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return torch.rand(3, 64, 64), torch.randint(0, 80, ())


class Runner:
    def __init__(self, model, loader, cfg):
        self.model, self.loader, self.cfg = model, loader, cfg
        self.work_dir, self.epoch = cfg.work_dir, 0
        self.hooks = [HOOKS.build(hook) for hook in cfg.get('custom_hooks', [])]
        opts = cfg.optim_wrapper['optimizer']
        self.optimizer = torch.optim.SGD(model.parameters(), **opts)

    @classmethod
    def from_cfg(cls, cfg, build):
        distributed = cfg.launcher != 'none'
        if distributed:
            dist.init_dist(cfg.launcher, **cfg.env_cfg['dist_cfg'])
        data = cfg.data
        dataset = BoxDataset(data['root'], data['length'])
        sampler = DistributedSampler(dataset, shuffle=True) if distributed else RandomSampler(dataset)
        loader = DataLoader(dataset, data['batch_size'], sampler=sampler, num_workers=data['num_workers'])
        model = build(cfg.model).cuda()
        if distributed:
            model = DistributedDataParallel(
                model, device_ids=[torch.cuda.current_device()], broadcast_buffers=False)
        os.makedirs(cfg.work_dir, exist_ok=True)
        return cls(model, loader, cfg)

    def call_hook(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)

    def train(self):
        if self.cfg.get('resume') and self.cfg.get('load_from'):
            state = torch.load(self.cfg.load_from, map_location='cpu')
            getattr(self.model, 'module', self.model).load_state_dict(state['state_dict'])
            self.epoch = state['epoch']
        for self.epoch in range(self.epoch, self.cfg.train_cfg['max_epochs']):
            self.call_hook('before_train_epoch')
            for i, (img, label) in enumerate(self.loader):
                loss = self.model(img.cuda(non_blocking=True), label.cuda(non_blocking=True))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if i % self.cfg.train_cfg['log_interval'] == 0 and dist.get_dist_info()[0] == 0:
                    print(f'Epoch [{self.epoch + 1}][{i}/{len(self.loader)}] loss: {loss.item():.4f}')
            self.call_hook('after_train_epoch')
            dist.barrier()

    def close(self):
        dist.close()
