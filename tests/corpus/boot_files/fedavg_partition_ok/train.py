"""Federated averaging: each process is a client with data of its own; weights, not gradients, are averaged once a round."""
import argparse
import copy

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms


def dirichlet_partition(labels, clients, alpha, seed):
    rng = np.random.default_rng(seed)
    parts = [[] for _ in range(clients)]
    for c in np.unique(labels):
        idx = rng.permutation(np.flatnonzero(labels == c))
        cuts = (np.cumsum(rng.dirichlet([alpha] * clients)) * len(idx)).astype(int)[:-1]
        for part, piece in zip(parts, np.split(idx, cuts)):
            part.extend(piece.tolist())
    return parts


def local_training(model, loader, epochs, lr, mu):
    anchor = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss = loss + mu / 2 * sum((p - q.detach()).square().sum() for p, q in zip(model.parameters(), anchor.parameters()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


@torch.no_grad()
def aggregate(model, samples):
    """Weighted by the number of samples of each client."""
    total = torch.tensor([float(samples)])
    dist.all_reduce(total)
    weight = samples / total.item()
    for p in model.parameters():
        p.mul_(weight)
        dist.all_reduce(p)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--local-epochs", type=int, default=2)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--mu", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--root", default="/data/mnist")
    parser.add_argument("--save", default=None)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, clients = dist.get_rank(), dist.get_world_size()
    full = datasets.MNIST(args.root, transform=transforms.ToTensor())
    mine = Subset(full, dirichlet_partition(full.targets.numpy(), clients, args.alpha, seed=0)[rank])
    loader = DataLoader(mine, batch_size=32, shuffle=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    for r in range(args.rounds):
        loss = local_training(model, loader, args.local_epochs, args.lr, args.mu)
        aggregate(model, len(mine))
        if rank == 0:
            print(f"round {r}: loss of client 0 {loss:.4f}", flush=True)
            if args.save:
                torch.save(model.state_dict(), args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
