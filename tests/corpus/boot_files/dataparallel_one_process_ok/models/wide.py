import torch.nn as nn


class WideNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 512, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
