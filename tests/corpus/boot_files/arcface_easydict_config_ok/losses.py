import torch
from torch import nn


class CombinedMarginLoss(nn.Module):
    def __init__(self, s, m1, m2, m3):
        super().__init__()
        self.s, self.m1, self.m2, self.m3 = s, m1, m2, m3

    def forward(self, logits, labels):
        theta = logits.clamp(-1 + 1e-7, 1 - 1e-7).acos()
        target = torch.cos(self.m1 * theta + self.m2) - self.m3
        onehot = nn.functional.one_hot(labels, logits.shape[1]).bool()
        return torch.where(onehot, target, logits) * self.s


class PartialHead(nn.Module):
    def __init__(self, margin, embedding_size, num_classes):
        super().__init__()
        self.margin = margin
        self.weight = nn.Parameter(torch.normal(0, 0.01, (num_classes, embedding_size)))

    def forward(self, embeddings, labels):
        logits = nn.functional.linear(nn.functional.normalize(embeddings.float()), nn.functional.normalize(self.weight))
        return nn.functional.cross_entropy(self.margin(logits, labels), labels)
