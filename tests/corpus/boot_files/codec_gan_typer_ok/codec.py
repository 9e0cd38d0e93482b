import torch
from torch import nn


class Codec(nn.Module):
    def __init__(self, quantizer, codebooks, dim=128):
        super().__init__()
        self.kind = quantizer
        self.enc = nn.Sequential(nn.Conv1d(1, dim, 7, 4, 3), nn.ELU(), nn.Conv1d(dim, dim, 7, 4, 3))
        self.books = nn.ModuleList(nn.Embedding(1024, dim) for _ in range(1 if quantizer == "vq" else codebooks))
        self.dec = nn.Sequential(nn.ConvTranspose1d(dim, dim, 4, 4), nn.ELU(), nn.ConvTranspose1d(dim, 1, 4, 4))

    def forward(self, wav):
        z = self.enc(wav)
        if self.kind == "fsq":
            q = z + (torch.round(torch.tanh(z) * 4) / 4 - z).detach()
            return self.dec(q)[..., : wav.shape[-1]], z.new_zeros(())
        rest, out = z.transpose(1, 2), 0
        for book in self.books:
            code = book(torch.cdist(rest, book.weight[None]).argmin(-1))
            out, rest = out + code, rest - code.detach()
        commit = (z.transpose(1, 2) - out.detach()).pow(2).mean() + (z.transpose(1, 2).detach() - out).pow(2).mean()
        q = z + (out.transpose(1, 2) - z).detach()
        return self.dec(q)[..., : wav.shape[-1]], commit


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 32, 15, 4, 7), nn.LeakyReLU(0.2), nn.Conv1d(32, 1, 15, 4, 7))

    def forward(self, x):
        return self.net(x)
