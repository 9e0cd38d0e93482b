"""Logistic regression on CPU nodes; parameters are averaged after each pass, metrics gathered as objects."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset, TensorDataset

log = logging.getLogger("logreg")


def average_parameters(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.data, op=dist.ReduceOp.SUM)
        param.data /= size


def make_data(rows, columns, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g)
    y = (x @ torch.randn(columns, generator=g) > 0).float()
    return TensorDataset(x, y)


def part_of(dataset, rank, size):
    return Subset(dataset, range(rank, len(dataset), size))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=100_000)
    ap.add_argument("--columns", type=int, default=64)
    ap.add_argument("--passes", type=int, default=5)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--penalty", choices=["l1", "l2", "none"], default="l2")
    ap.add_argument("-v", "--verbose", action="count", default=0)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 or args.verbose else logging.WARNING)
    torch.set_num_threads(1)

    mine = part_of(make_data(args.rows, args.columns, seed=7), rank, size)
    loader = DataLoader(mine, batch_size=args.batch, shuffle=True)
    device = torch.device("cpu")
    model = torch.nn.Linear(args.columns, 1).to(device)
    for param in model.parameters():
        dist.broadcast(param.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(args.passes):
        total, seen = 0.0, 0
        for x, y in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x).flatten(), y)
            if args.penalty != "none":
                order = 1 if args.penalty == "l1" else 2
                loss = loss + 1e-4 * model.weight.norm(order)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, seen = total + loss.item() * len(y), seen + len(y)
        average_parameters(model)
        results = [None] * size
        dist.all_gather_object(results, (total, seen))
        if rank == 0:
            log.info("pass %d loss %.4f", i, sum(t for t, _ in results) / sum(n for _, n in results))
    if rank == 0:
        log.info("weights %s", model.weight.data[0, :4].tolist())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
