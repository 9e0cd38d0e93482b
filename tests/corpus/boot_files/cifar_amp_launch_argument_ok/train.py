import argparse
import contextlib
import logging
import os

import torch
import torch.distributed as dist
import torchvision
import torchvision.transforms as T
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("cifar")


def get_args():
    parser = argparse.ArgumentParser("CIFAR with AMP and gradient accumulation")
    parser.add_argument("--local-rank", "--local_rank", type=int, default=-1, help="given by torch.distributed.launch")
    parser.add_argument("--data_root", type=str, default="/data/cifar")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--micro_batch", type=int, default=128)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16"], default="bf16")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--save_to", type=str, default=None)
    return parser.parse_args()


def build(args, device):
    net = torchvision.models.resnet18(num_classes=10)
    net.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    net.maxpool = torch.nn.Identity()
    net = net.to(device)
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net = DistributedDataParallel(net, device_ids=[args.local_rank], output_device=args.local_rank)
    return torch.compile(net) if args.compile else net


def run_epoch(net, loader, optimizer, scaler, args, device):
    net.train()
    seen = torch.zeros(2, device=device)
    for step, (x, y) in enumerate(loader):
        is_last = (step + 1) % args.accumulate == 0
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with contextlib.nullcontext() if is_last else net.no_sync():
            with torch.autocast("cuda", dtype=torch.float16 if args.precision == "fp16" else torch.bfloat16,
                                enabled=args.precision != "fp32"):
                loss = torch.nn.functional.cross_entropy(net(x), y)
            scaler.scale(loss / args.accumulate).backward()
        if is_last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        seen[0] += loss.detach()
        seen[1] += 1
    dist.all_reduce(seen)
    return (seen[0] / seen[1]).item()


def main():
    args = get_args()
    torch.cuda.set_device(args.local_rank)
    device = torch.device("cuda", args.local_rank)
    dist.init_process_group("nccl")
    is_main = dist.get_rank() == 0
    if args.local_rank == 0:
        torchvision.datasets.CIFAR10(args.data_root, download=True)
    dist.barrier()
    data = torchvision.datasets.CIFAR10(args.data_root, transform=T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))
    sampler = DistributedSampler(data, seed=17, drop_last=True)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, num_workers=4, pin_memory=True, drop_last=True)
    net = build(args, device)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cuda", enabled=args.precision == "fp16")
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        loss = run_epoch(net, loader, optimizer, scaler, args, device)
        if is_main:
            log.info("epoch %d loss %.4f", epoch, loss)
    if is_main and args.save_to:
        os.makedirs(os.path.dirname(args.save_to) or ".", exist_ok=True)
        torch.save(net.module.state_dict() if not args.compile else net._orig_mod.module.state_dict(), args.save_to)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
