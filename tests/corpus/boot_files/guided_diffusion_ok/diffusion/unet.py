import torch as th
import torch.nn as nn


class UNetModel(nn.Module):
    def __init__(self, channels, num_res_blocks, out_channels, dropout):
        super().__init__()
        self.inp = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*[
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU(), nn.Dropout(dropout))
            for _ in range(num_res_blocks)])
        self.out = nn.Conv2d(channels, out_channels, 3, padding=1)

    def forward(self, x, timesteps):
        return self.out(self.blocks(self.inp(x) + timesteps.view(-1, 1, 1, 1)))


class GaussianDiffusion:
    def __init__(self, steps, schedule):
        self.num_timesteps = steps
        self.power = {"linear": 1, "cosine": 2}[schedule]

    def training_loss(self, model, x_start):
        t = th.rand(x_start.shape[0], device=x_start.device)
        keep = ((1 - t) ** self.power).view(-1, 1, 1, 1)
        noise = th.randn_like(x_start)
        out = model(keep.sqrt() * x_start + (1 - keep).sqrt() * noise, t)
        return (out[:, :3] - noise).pow(2).mean()
