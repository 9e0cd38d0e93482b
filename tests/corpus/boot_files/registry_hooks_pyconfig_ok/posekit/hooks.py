import torch
import torch.distributed as dist

from .builder import HOOKS
from .dist_utils import get_dist_info


class Hook:
    def before_epoch(self, runner):
        pass

    def after_iter(self, runner):
        pass

    def after_epoch(self, runner):
        pass


@HOOKS.register_module()
class DistSamplerSeedHook(Hook):
    def before_epoch(self, runner):
        runner.data_loader.sampler.set_epoch(runner.epoch)


@HOOKS.register_module()
class CheckpointHook(Hook):
    def __init__(self, interval=1):
        self.interval = interval

    def after_epoch(self, runner):
        if (runner.epoch + 1) % self.interval == 0 and runner.rank == 0:
            runner.save_checkpoint()


@HOOKS.register_module()
class TextLoggerHook(Hook):
    def __init__(self, interval=10):
        self.interval = interval

    def after_iter(self, runner):
        if runner.rank == 0 and runner.iter % self.interval == 0:
            print("epoch %d iter %d loss %.4f" % (runner.epoch, runner.iter, runner.loss.item()), flush=True)


@HOOKS.register_module()
class EvalHook(Hook):
    def __init__(self, dataloader, interval=1):
        self.dataloader, self.interval = dataloader, interval

    @torch.no_grad()
    def after_epoch(self, runner):
        if (runner.epoch + 1) % self.interval:
            return
        runner.model.eval()
        total = torch.zeros(2, device="cuda")
        for img, target in self.dataloader:
            total[0] += runner.model(img.cuda(), target.cuda())
            total[1] += 1
        rank, world_size = get_dist_info()
        if world_size > 1:
            dist.all_reduce(total)
        if rank == 0:
            print("val loss %.4f" % (total[0] / total[1]).item())
