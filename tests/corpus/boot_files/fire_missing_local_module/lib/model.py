import torch.nn as nn

from . import layers


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(layers.block(8, 16), layers.block(16, 1))

    def forward(self, x):
        return self.body(x)
