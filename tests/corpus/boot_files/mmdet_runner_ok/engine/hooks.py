import os.path as osp

import torch

from .dist import master_only
from .registry import HOOKS


class Hook:
    def before_train_epoch(self, runner):
        pass

    def after_train_epoch(self, runner):
        pass


@HOOKS.register_module()
class SamplerSeedHook(Hook):
    def before_train_epoch(self, runner):
        if hasattr(runner.loader.sampler, 'set_epoch'):
            runner.loader.sampler.set_epoch(runner.epoch)


@HOOKS.register_module()
class CheckpointHook(Hook):
    def __init__(self, interval=1):
        self.interval = interval

    @master_only
    def after_train_epoch(self, runner):
        if (runner.epoch + 1) % self.interval:
            return
        model = getattr(runner.model, 'module', runner.model)
        path = osp.join(runner.work_dir, f'epoch_{runner.epoch + 1}.pth')
        torch.save({'state_dict': model.state_dict(), 'epoch': runner.epoch + 1}, path)
