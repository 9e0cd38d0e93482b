import torch
import torch.nn as nn
import torch.nn.functional as F


class TwoTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.visual = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.BatchNorm2d(64), nn.Flatten(), nn.LazyLinear(dim))
        self.visual(torch.zeros(2, 3, 32, 32))
        self.token = nn.EmbeddingBag(1000, dim)
        self.logit_scale = nn.Parameter(torch.ones([]) * 2.6593)

    def forward(self, image, text):
        return F.normalize(self.visual(image), dim=-1), F.normalize(self.token(text), dim=-1), self.logit_scale.exp()
