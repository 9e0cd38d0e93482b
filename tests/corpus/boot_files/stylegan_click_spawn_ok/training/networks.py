import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Linear(width, 3 * 32 * 32))

    def forward(self, z):
        return self.net(z).view(-1, 3, 32, 32)


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, img):
        return self.net(img)
