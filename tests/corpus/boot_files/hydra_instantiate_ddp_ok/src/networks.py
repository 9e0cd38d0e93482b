from torch import nn


class MLP(nn.Sequential):
    def __init__(self, inputs, width, outputs):
        super().__init__(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))
