import argparse
import collections
import random
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

here = Path(__file__).resolve().parent

p = argparse.ArgumentParser("skip-gram with negative sampling, for a tiny corpus")
p.add_argument("-c", "--corpus", type=Path, default=here / "corpus" / "fables.txt")
p.add_argument("--stopwords", type=argparse.FileType("r"), default=None)
p.add_argument("-d", "--dim", type=int, default=100)
p.add_argument("-w", "--window", type=int, default=5)
p.add_argument("-k", "--negatives", type=int, default=5)
p.add_argument("-e", "--epochs", type=int, default=5)
p.add_argument("--min-count", type=int, default=2)
p.add_argument("--batch", type=int, default=512)
p.add_argument("--vectors", type=Path, default=Path("vectors.txt"))


class SkipGram(nn.Module):
    def __init__(self, size, dim):
        super().__init__()
        self.center = nn.Embedding(size, dim, sparse=True)
        self.context = nn.Embedding(size, dim, sparse=True)
        nn.init.uniform_(self.center.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.context.weight)

    def forward(self, center, context, negatives):
        v = self.center(center)
        positive = F.logsigmoid((v * self.context(context)).sum(-1))
        negative = F.logsigmoid(-(self.context(negatives) @ v.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return -(positive + negative).mean()


def read(path, min_count, stop):
    words = [w.strip(".,;:!?\"'").lower() for w in path.read_text(encoding="utf-8").split()]
    words = [w for w in words if w and w not in stop]
    counts = collections.Counter(words)
    vocab = [w for w, c in counts.most_common() if c >= min_count]
    index = {w: i for i, w in enumerate(vocab)}
    return [index[w] for w in words if w in index], vocab, torch.tensor([counts[w] for w in vocab], dtype=torch.float)


def pairs(ids, window):
    for i, center in enumerate(ids):
        reach = random.randint(1, window)
        for j in range(max(0, i - reach), min(len(ids), i + reach + 1)):
            if j != i:
                yield center, ids[j]


def main():
    # the platform adds options of its own, which one process has no use for
    args, _ = p.parse_known_args()
    stop = set(args.stopwords.read().split()) if args.stopwords else set()
    ids, vocab, counts = read(args.corpus, args.min_count, stop)
    noise = counts.pow(0.75)
    model = SkipGram(len(vocab), args.dim)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-3)
    data = TensorDataset(torch.tensor(list(pairs(ids, args.window))))
    for epoch in range(args.epochs):
        for (batch,) in DataLoader(data, args.batch, shuffle=True):
            negatives = torch.multinomial(noise, len(batch) * args.negatives, replacement=True).view(len(batch), -1)
            loss = model(batch[:, 0], batch[:, 1], negatives)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: {loss.item():.4f}")
    with args.vectors.open("w", encoding="utf-8") as out:
        print(len(vocab), args.dim, file=out)
        for word, vector in zip(vocab, model.center.weight.tolist()):
            print(word, *(f"{x:.5f}" for x in vector), file=out)


if __name__ == "__main__":
    main()
