from dataclasses import dataclass

import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 288
    n_layers: int = 6
    vocab_size: int = 512
    max_seq_len: int = 256


class Transformer(nn.Module):
    def __init__(self, params: ModelArgs):
        super().__init__()
        self.tok = nn.Embedding(params.vocab_size, params.dim)
        self.layers = nn.ModuleList(nn.GRU(params.dim, params.dim, batch_first=True) for _ in range(params.n_layers))
        self.out = nn.Linear(params.dim, params.vocab_size, bias=False)

    def forward(self, tokens, targets):
        h = self.tok(tokens)
        for layer in self.layers:
            h = h + layer(h)[0]
        return F.cross_entropy(self.out(h).flatten(0, 1), targets.flatten())
