import torch.nn as nn


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.ReLU())
