import torch
import torch.nn as nn

from .gather import GatherLayer


class NT_Xent(nn.Module):
    def __init__(self, batch_size, temperature, world_size):
        super().__init__()
        self.batch_size, self.temperature, self.world_size = batch_size, temperature, world_size

    def forward(self, z_i, z_j):
        if self.world_size > 1:
            z_i = torch.cat(GatherLayer.apply(z_i), dim=0)
            z_j = torch.cat(GatherLayer.apply(z_j), dim=0)
        z = nn.functional.normalize(torch.cat((z_i, z_j), dim=0), dim=1)
        sim = z @ z.T / self.temperature
        n = z.shape[0]
        sim = sim.masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), float("-inf"))
        target = torch.arange(n, device=z.device).roll(n // 2)
        return nn.functional.cross_entropy(sim, target)
