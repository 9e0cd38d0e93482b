import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="regression")
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

dist.init_process_group("nccl")
device = torch.device("cuda:0")

xs = torch.linspace(-1, 1, 1000).unsqueeze(1)
ys = xs.pow(3)
dataset = TensorDataset(xs, ys)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=50, sampler=sampler)

model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(epoch, loss.item())
dist.destroy_process_group()
