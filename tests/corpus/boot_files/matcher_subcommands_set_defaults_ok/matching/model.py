import torch
from torch import nn


class Matcher(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, dim, 7, 4, 3), nn.ReLU(), nn.Conv2d(dim, dim, 3, 2, 1))
        self.head = nn.Linear(2 * dim, 9)

    def forward(self, a, b):
        f = [self.backbone(x).mean((2, 3)) for x in (a, b)]
        return self.head(torch.cat(f, 1))
