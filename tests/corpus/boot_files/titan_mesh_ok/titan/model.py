import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.w1 = nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        return x + self.w2(F.silu(self.w1(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self, dim, n_layers, vocabulary):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(FeedForward(dim) for _ in range(n_layers))
        self.output = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(h)


def parallelize(model, mesh, compile_it):
    for i, layer in enumerate(model.layers):
        if mesh["tp"].size() > 1:
            parallelize_module(layer, mesh["tp"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
        if compile_it:
            layer.compile(fullgraph=True)
        fully_shard(layer, mesh=mesh["dp_shard"], reshard_after_forward=i < len(model.layers) - 1)
    fully_shard(model, mesh=mesh["dp_shard"])
    return model
