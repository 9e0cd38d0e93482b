import math

import torch
from torch import nn


class Embedder:
    def __init__(self, freqs):
        self.bands = [2.0 ** i * math.pi for i in range(freqs)]
        self.out_dim = 3 * (1 + 2 * freqs)

    def __call__(self, x):
        return torch.cat([x] + [fn(x * band) for band in self.bands for fn in (torch.sin, torch.cos)], -1)


class NeRF(nn.Module):
    def __init__(self, input_ch, width):
        super().__init__()
        self.pts_linears = nn.Sequential(nn.Linear(input_ch, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.output_linear = nn.Linear(width, 4)

    def forward(self, x):
        return self.output_linear(self.pts_linears(x))


def render_rays(network, embed, origins, dirs, samples, perturb):
    t = torch.linspace(2.0, 6.0, samples, device=origins.device).expand(len(origins), samples)
    t = t + perturb * torch.rand_like(t) * (4.0 / samples)
    raw = network(embed(origins[:, None] + dirs[:, None] * t[..., None]))
    alpha = 1 - torch.exp(-raw[..., 3].relu() * (4.0 / samples))
    keep = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return ((alpha * keep)[..., None] * raw[..., :3].sigmoid()).sum(1)


def sample_pdf_available():
    return hasattr(torch, "searchsorted")
