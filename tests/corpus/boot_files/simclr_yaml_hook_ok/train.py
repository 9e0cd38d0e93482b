"""SimCLR-like: options come from a yaml file; machines are counted by the platform."""
import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision

# distributed training
from torch.nn.parallel import DataParallel
from torch.nn.parallel import DistributedDataParallel as DDP

try:
    from apex.parallel import convert_syncbn_model
except ImportError:
    convert_syncbn_model = torch.nn.SyncBatchNorm.convert_sync_batchnorm

from simclr import NT_Xent, SimCLR, TransformsSimCLR
from simclr.hook import yaml_config_hook


def train(args, train_loader, model, criterion, optimizer):
    loss_epoch = 0
    for step, ((x_i, x_j), _) in enumerate(train_loader):
        optimizer.zero_grad()
        x_i = x_i.cuda(non_blocking=True)
        x_j = x_j.cuda(non_blocking=True)
        z_i, z_j = model(x_i, x_j)
        loss = criterion(z_i, z_j)
        loss.backward()
        optimizer.step()
        if dist.is_available() and dist.is_initialized():
            loss = loss.data.clone()
            dist.all_reduce(loss.div_(dist.get_world_size()))
        if args.nr == 0 and args.local == 0 and step % 50 == 0:
            print(f"Step [{step}/{len(train_loader)}]\t Loss: {loss.item()}")
        loss_epoch += loss.item()
    return loss_epoch


def main(gpu, args):
    args.local = gpu
    rank = args.nr * args.gpus + gpu
    if args.world_size > 1:
        dist.init_process_group("nccl", init_method=args.init_method, rank=rank, world_size=args.world_size)
        torch.cuda.set_device(gpu)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    train_dataset = torchvision.datasets.STL10(
        args.dataset_dir, split="unlabeled", transform=TransformsSimCLR(size=args.image_size))
    if args.world_size > 1:
        train_sampler = torch.utils.data.distributed.DistributedSampler(
            train_dataset, num_replicas=args.world_size, rank=rank, shuffle=True)
    else:
        train_sampler = None
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None), drop_last=True,
        num_workers=args.workers, sampler=train_sampler)

    model = SimCLR(args.projection_dim).to(torch.device("cuda", gpu))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    criterion = NT_Xent(args.batch_size, args.temperature, args.world_size)
    if args.dataparallel:
        model = DataParallel(model)
    elif args.world_size > 1:
        model = convert_syncbn_model(model)
        model = DDP(model, device_ids=[gpu])

    for epoch in range(args.start_epoch, args.epochs):
        if train_sampler is not None:
            train_sampler.set_epoch(epoch)
        loss_epoch = train(args, train_loader, model, criterion, optimizer)
        if rank == 0:
            torch.save(getattr(model, "module", model).state_dict(), os.path.join(args.model_path, f"ck_{epoch}.tar"))
            print(f"Epoch [{epoch}/{args.epochs}]\t Loss: {loss_epoch / len(train_loader)}")
    if args.world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SimCLR")
    config = yaml_config_hook("./config/config.yaml")
    for k, v in config.items():
        parser.add_argument(f"--{k}", default=v, type=type(v))
    parser.add_argument("--init_method", type=str, default=None)
    parser.add_argument("--world_size", dest="nodes", type=int, default=1)
    parser.add_argument("--rank", dest="nr", type=int, default=0)
    args = parser.parse_args()

    os.makedirs(args.model_path, exist_ok=True)
    args.gpus = torch.cuda.device_count()
    args.world_size = args.gpus * args.nodes
    if args.world_size > 1:
        print(f"Training with {args.nodes} nodes, waiting until all nodes join before starting training")
        mp.spawn(main, args=(args,), nprocs=args.gpus, join=True)
    else:
        main(0, args)
