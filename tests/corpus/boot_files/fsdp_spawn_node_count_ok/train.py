"""FSDP started with mp.spawn; the platform counts nodes, we count processes."""
import argparse
import os
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STRATEGIES = {
    "full": ShardingStrategy.FULL_SHARD,
    "grad": ShardingStrategy.SHARD_GRAD_OP,
    "hybrid": ShardingStrategy.HYBRID_SHARD,
}


def build_model(dim, layers):
    layer = nn.TransformerEncoderLayer(dim, 8, batch_first=True)
    return nn.Sequential(nn.Linear(16, dim), nn.TransformerEncoder(layer, layers), nn.Linear(dim, 16))


def worker(local_rank, ngpus, args):
    rank = args.rank * ngpus + local_rank
    world_size = args.world_size * ngpus
    dist.init_process_group("nccl", init_method=args.init_method, rank=rank, world_size=world_size)
    torch.cuda.set_device(local_rank)

    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer})
    model = FSDP(
        build_model(args.dim, args.layers),
        auto_wrap_policy=policy,
        sharding_strategy=STRATEGIES[args.strategy],
        cpu_offload=CPUOffload(offload_params=args.offload),
        device_id=local_rank,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    dataset = TensorDataset(*torch.load(os.path.join(args.data, "train.pt"), map_location="cpu"))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=2, pin_memory=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        summed = torch.zeros(2, device=local_rank)
        for x, y in loader:
            x, y = x.to(local_rank, non_blocking=True), y.to(local_rank, non_blocking=True)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            summed += torch.stack([loss.detach(), torch.ones((), device=local_rank)])
        dist.all_reduce(summed)
        if rank == 0:
            print(f"epoch {epoch} loss {(summed[0] / summed[1]).item():.5f}", flush=True)
    state = model.state_dict()
    if rank == 0:
        torch.save(state, os.path.join(args.out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


def get_parser():
    parser = argparse.ArgumentParser(description="FSDP")
    parser.add_argument("--data", default="/data/series")
    parser.add_argument("--out", default="/out")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--strategy", choices=sorted(STRATEGIES), default="full")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--init_method", default="tcp://127.0.0.1:23456", help="where the processes meet")
    parser.add_argument("--world_size", type=int, default=1, help="number of nodes")
    parser.add_argument("--rank", type=int, default=0, help="number of this node")
    return parser


if __name__ == "__main__":
    options = get_parser().parse_args()
    count = torch.cuda.device_count()
    mp.spawn(worker, args=(count, options), nprocs=count, join=True)
