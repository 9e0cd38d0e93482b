from torch import nn


class Generator(nn.Module):
    def __init__(self, size, style_dim):
        super().__init__()
        self.size = size
        self.net = nn.Sequential(nn.Linear(style_dim, 256), nn.LeakyReLU(0.2), nn.Linear(256, 3 * size * size))

    def forward(self, z):
        return self.net(z).view(-1, 3, self.size, self.size)


class Discriminator(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))

    def forward(self, img):
        return self.net(img)
