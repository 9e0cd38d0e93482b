import torch
from torch import nn


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.down = conv(3, width)
        self.mid = nn.Sequential(nn.MaxPool2d(2), conv(width, 2 * width), nn.Upsample(scale_factor=2))
        self.up = nn.Sequential(conv(3 * width, width), nn.Conv2d(width, classes, 1))

    def forward(self, x):
        skip = self.down(x)
        return self.up(torch.cat([skip, self.mid(skip)], 1))


def count_parameters(model):
    return sum(p.numel() for p in model.parameters())
