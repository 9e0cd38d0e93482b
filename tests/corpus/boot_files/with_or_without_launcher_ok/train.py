"""Runs under torchrun, under the platform's one start per node, or on a laptop."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def launched_by_torchrun():
    return "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= os.environ.keys()


def parse_args():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", choices=[64, 128, 256], type=int, default=64)
    parser.add_argument("--checkpoint_dir", default=None)
    # only without a launcher of processes
    parser.add_argument("--init_method", default=None)
    parser.add_argument("--world_size", type=int, default=1, help="nodes")
    parser.add_argument("--rank", type=int, default=0, help="of the node")
    return parser.parse_args()


def work(local_rank, per_node, args):
    use_cuda = torch.cuda.is_available()
    backend = "nccl" if use_cuda else "gloo"
    if launched_by_torchrun():
        dist.init_process_group(backend)
    elif per_node * args.world_size > 1:
        dist.init_process_group(backend, init_method=args.init_method or "tcp://127.0.0.1:29511",
                                rank=args.rank * per_node + local_rank, world_size=args.world_size * per_node)
    distributed = dist.is_initialized()
    rank = dist.get_rank() if distributed else 0
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(10000, args.size), torch.randint(0, 10, (10000,)))
    sampler = DistributedSampler(data) if distributed else RandomSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(args.size, 256), nn.GELU(), nn.Linear(256, 10)).to(device)
    path = os.path.join(args.checkpoint_dir, "mlp.pt") if args.checkpoint_dir else None
    if path and os.path.exists(path):
        model.load_state_dict(torch.load(path, map_location=device))
    if distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if use_cuda else None)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(args.epochs):
        if distributed:
            sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.3f}", flush=True)
            if path:
                torch.save(getattr(model, "module", model).state_dict(), path)
    if distributed:
        dist.destroy_process_group()


def main():
    args = parse_args()
    if launched_by_torchrun():
        work(int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", 1)), args)
        return
    per_node = torch.cuda.device_count() or max(1, (os.cpu_count() or 1) // 4)
    if per_node == 1:
        work(0, 1, args)
    else:
        mp.start_processes(work, args=(per_node, args), nprocs=per_node, start_method="spawn")


if __name__ == "__main__":
    main()
