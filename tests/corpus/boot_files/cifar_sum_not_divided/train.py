"""Distributed SGD the manual way (blog style)."""
import os
from argparse import ArgumentParser
from math import ceil
from random import Random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torchvision import datasets, transforms


class Partition:
    def __init__(self, data, index):
        self.data, self.index = data, index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        return self.data[self.index[i]]


class DataPartitioner:
    def __init__(self, data, sizes, seed=1234):
        rng = Random(seed)
        indexes = list(range(len(data)))
        rng.shuffle(indexes)
        self.data, self.partitions = data, []
        for frac in sizes:
            n = int(frac * len(data))
            self.partitions.append(indexes[:n])
            indexes = indexes[n:]

    def use(self, i):
        return Partition(self.data, self.partitions[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 5)
        self.fc = nn.Linear(10 * 14 * 14, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)), dim=1)


def average_gradients(model):
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)


def run(args):
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(1234)
    data = datasets.CIFAR10(args.data, train=True, transform=transforms.ToTensor())
    part = DataPartitioner(data, [1.0 / size] * size).use(rank)
    bsz = int(128 / size)
    train_set = torch.utils.data.DataLoader(part, batch_size=bsz, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    num_batches = ceil(len(part) / float(bsz))
    for epoch in range(args.epochs):
        epoch_loss = 0.0
        for x, y in train_set:
            optimizer.zero_grad()
            loss = F.nll_loss(model(x.to(device)), y.to(device))
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print("Rank", rank, "epoch", epoch, ":", epoch_loss / num_batches)


if __name__ == "__main__":
    ap = ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.01)
    ap.add_argument("--epochs", type=int, default=10)
    ap.add_argument("--data", default="./data")
    opts = ap.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    run(opts)
    dist.destroy_process_group()
