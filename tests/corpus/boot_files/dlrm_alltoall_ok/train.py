"""Recommendation: dense MLPs in DDP, tables of embeddings on one rank each, alltoall between them."""
import argparse
import sys
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import IterableDataset

import extend_distributed as ext_dist


def dash_separated_ints(value):
    vals = value.split("-")
    for val in vals:
        try:
            int(val)
        except ValueError:
            raise argparse.ArgumentTypeError("%s is not a valid dash separated list of ints" % value)
    return value


class RandomClicks(IterableDataset):
    """Each process generates its own part of every batch."""

    def __init__(self, tables, dense, batches, batch, seed):
        self.tables, self.dense, self.batches, self.batch, self.seed = tables, dense, batches, batch, seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        for _ in range(self.batches):
            x = torch.from_numpy(rng.random((self.batch, self.dense), dtype=np.float32))
            ids = torch.stack([torch.from_numpy(rng.integers(0, n, self.batch)) for n in self.tables])
            yield x, ids, torch.from_numpy(rng.integers(0, 2, self.batch)).float()


def create_mlp(ln):
    layers = []
    for a, b in zip(ln[:-1], ln[1:]):
        layers += [nn.Linear(int(a), int(b)), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    def __init__(self, tables, dim, ln_bot, ln_top, device):
        super().__init__()
        self.local = ext_dist.get_my_slice(len(tables))
        self.emb = nn.ModuleList([nn.Embedding(n, dim, sparse=False) for n in tables[self.local]]).to(device)
        self.bot_l, self.top_l = create_mlp(ln_bot).to(device), create_mlp(ln_top).to(device)

    def forward(self, x, ids):
        every = ext_dist.all_gather_batch(ids)[self.local]
        looked_up = torch.stack([table(i) for table, i in zip(self.emb, every)], 1)
        return self.top_l(torch.cat([self.bot_l(x), ext_dist.alltoall(looked_up).flatten(1)], 1)).flatten()


def run():
    parser = argparse.ArgumentParser(description="Train a recommendation model")
    parser.add_argument("--arch-sparse-feature-size", type=int, default=16)
    parser.add_argument("--arch-embedding-size", type=dash_separated_ints, default="1000-800-600-400-300-200-100-50")
    parser.add_argument("--arch-mlp-bot", type=dash_separated_ints, default="13-64-16")
    parser.add_argument("--arch-mlp-top", type=dash_separated_ints, default="64-1")
    parser.add_argument("--mini-batch-size", type=int, default=2048)
    parser.add_argument("--num-batches", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--numpy-rand-seed", type=int, default=123)
    parser.add_argument("--use-gpu", action="store_true", default=False)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--dist-backend", type=str, default="")
    parser.add_argument("--save-model", type=str, default="")
    args = parser.parse_args()
    use_gpu = args.use_gpu and torch.cuda.is_available()
    if not args.use_gpu:
        ext_dist.init_distributed(local_rank=args.local_rank, use_gpu=False, backend=args.dist_backend)
    else:
        ext_dist.init_distributed(local_rank=args.local_rank, use_gpu=use_gpu, backend=args.dist_backend)

    np.random.seed(args.numpy_rand_seed)
    torch.manual_seed(args.numpy_rand_seed)
    device = torch.device("cuda", ext_dist.my_local_rank) if use_gpu else torch.device("cpu")
    tables = np.fromstring(args.arch_embedding_size, dtype=int, sep="-")
    ln_bot = np.fromstring(args.arch_mlp_bot, dtype=int, sep="-")
    top = np.fromstring(args.arch_mlp_top, dtype=int, sep="-")
    m_spa = args.arch_sparse_feature_size
    if len(tables) % ext_dist.my_size:
        sys.exit("the number of tables must be a multiple of the number of processes")
    if args.mini_batch_size % ext_dist.my_size != 0:
        sys.exit("batch size must be a multiple of the number of processes")
    ln_top = [ln_bot[-1] + len(tables) * m_spa, *top]

    dlrm = DLRM(tables, m_spa, ln_bot, ln_top, device)
    if ext_dist.my_size > 1:
        ids = [ext_dist.my_local_rank] if use_gpu else None
        dlrm.bot_l = ext_dist.DDP(dlrm.bot_l, device_ids=ids)
        dlrm.top_l = ext_dist.DDP(dlrm.top_l, device_ids=ids)
    optimizer = torch.optim.SGD(dlrm.parameters(), lr=args.learning_rate)
    loss_fn = nn.BCEWithLogitsLoss()
    data = RandomClicks(tables, int(ln_bot[0]), args.num_batches, args.mini_batch_size // ext_dist.my_size,
                        args.numpy_rand_seed + ext_dist.my_rank)
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    ext_dist.barrier()
    t0 = time.time()
    for j, (x, lookups, target) in enumerate(loader):
        loss = loss_fn(dlrm(x.to(device), lookups.to(device)), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if j % 100 == 0:
            ext_dist.print_all(f"batch {j} loss {loss.item():.5f} {time.time() - t0:.1f} s")
    if args.save_model:
        torch.save(dlrm.state_dict(), f"{args.save_model}.{ext_dist.my_rank}")
    ext_dist.finish()


if __name__ == "__main__":
    run()
