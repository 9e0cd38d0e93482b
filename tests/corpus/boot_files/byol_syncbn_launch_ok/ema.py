import math

import torch


def cosine_tau(step, total, base=0.996):
    return 1 - (1 - base) * (math.cos(math.pi * step / total) + 1) / 2


@torch.no_grad()
def update_target(online, target, tau):
    for p, t in zip(online.parameters(), target.parameters()):
        t.mul_(tau).add_(p, alpha=1 - tau)
