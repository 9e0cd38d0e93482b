import copy
import logging
import random

import numpy as np
import torch


class AverageMeter:
    def __init__(self):
        self.avg, self.sum, self.count = 0, 0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class ModelEma:
    def __init__(self, model, decay=0.9999):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        source = getattr(model, 'module', model).state_dict()
        for k, ema_v in self.module.state_dict().items():
            ema_v.copy_(ema_v * self.decay + (1. - self.decay) * source[k] if ema_v.is_floating_point() else source[k])


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean() * 100.


def random_seed(seed=42, rank=0):
    torch.manual_seed(seed + rank)
    np.random.seed(seed + rank)
    random.seed(seed + rank)


def setup_default_logging(default_level=logging.INFO):
    logging.basicConfig(level=default_level, format='%(message)s')
