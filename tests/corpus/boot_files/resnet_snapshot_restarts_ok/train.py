"""Fault tolerant training: torchrun starts all processes again, and they go on from the last snapshot."""
import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from snapshot import Snapshots


def ddp_setup(backend):
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend=backend)
    torch.cuda.set_device(local_rank)
    return rank, local_rank, int(os.environ["WORLD_SIZE"])


def read_classes():
    here = Path(__file__).parent
    with open("meta/classes.txt") as f:
        names = [line.strip() for line in f if line.strip()]
    print(f"{len(names)} classes ({here.name})")
    return names


def prepare_dataloader(dataset, batch_size, workers):
    return DataLoader(dataset, batch_size=batch_size, pin_memory=True, shuffle=False, num_workers=workers,
                      sampler=DistributedSampler(dataset))


def main(args):
    rank, local_rank, world_size = ddp_setup(args.backend)
    names = read_classes()
    tf = torchvision.transforms.Compose([torchvision.transforms.Resize((224, 224)), torchvision.transforms.ToTensor()])
    train_data = prepare_dataloader(torchvision.datasets.ImageFolder(args.data, tf), args.batch_size, args.workers)
    model = torchvision.models.resnet50(num_classes=len(names)).to(local_rank)
    model = DDP(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * world_size, momentum=0.9)
    snapshots = Snapshots(args.checkpoint_dir or os.environ.get("JOBSUBMIT_CHECKPOINT_DIR", "snapshots"), rank)
    first = snapshots.restore(model, optimizer, f"cuda:{local_rank}")
    for epoch in range(first, args.total_epochs):
        train_data.sampler.set_epoch(epoch)
        for source, targets in train_data:
            source, targets = source.to(local_rank), targets.to(local_rank)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(source), targets)
            loss.backward()
            optimizer.step()
        if epoch % args.save_every == 0 or epoch == args.total_epochs - 1:
            snapshots.keep(model, optimizer, epoch)
            dist.barrier()
        if rank == 0:
            print(f"Epoch {epoch} | Steps: {len(train_data)} | loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="fault tolerant distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("--save_every", type=int, default=1, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=32, type=int, help="Input batch size on each device (default: 32)")
    parser.add_argument("--lr", type=float, default=0.0125, help="for one process")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--data", required=True)
    parser.add_argument("--checkpoint_dir", default=None)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    main(parser.parse_args())
