import argparse
import copy
import json
import logging
import os
import sys
from pathlib import Path

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

from ema import cosine_tau, update_target


class BYOL(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.online = models.resnet18(num_classes=args.dim)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False
        self.predictor = nn.Sequential(nn.Linear(args.dim, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, args.dim))

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        return regression(pa, tb.detach()) + regression(pb, ta.detach())


def regression(x, y):
    return (2 - 2 * nn.functional.cosine_similarity(x, y, dim=-1)).mean()


class TwoViews:
    def __init__(self, size):
        self.tf = transforms.Compose([transforms.RandomResizedCrop(size), transforms.ToTensor()])

    def __call__(self, img):
        return self.tf(img), self.tf(img)


def build_loader(args):
    dataset = datasets.ImageFolder(Path(args.data_dir) / "train", TwoViews(args.image_size))
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, drop_last=True)
    assert args.batch_size % args.world_size == 0
    loader = DataLoader(dataset, batch_size=args.batch_size // args.world_size, num_workers=args.workers,
                        pin_memory=True, sampler=sampler)
    return loader, sampler


def main():
    parser = argparse.ArgumentParser(description="BYOL pretraining")
    parser.add_argument("--data-dir", type=Path, default="/data/imagenet")
    parser.add_argument("--exp-dir", type=Path, default="./exp", help="where stats and checkpoints go")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--base-lr", type=float, default=0.2)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--log-freq-time", type=int, default=60)
    args = parser.parse_args()

    torch.backends.cudnn.benchmark = True
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    torch.distributed.init_process_group("nccl")
    args.rank = torch.distributed.get_rank()
    args.world_size = torch.distributed.get_world_size()
    logging.basicConfig(level=logging.INFO if args.rank == 0 else logging.ERROR)

    stats_file = None
    if args.rank == 0:
        args.exp_dir.mkdir(parents=True, exist_ok=True)
        stats_file = open(args.exp_dir / "stats.txt", "a", buffering=1)
        print(" ".join(sys.argv), file=stats_file)

    loader, sampler = build_loader(args)
    model = BYOL(args).cuda(gpu)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model, device_ids=[gpu])
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=args.base_lr * args.batch_size / 256, momentum=0.9)

    start_epoch = 0
    if (args.exp_dir / "model.pth").is_file():
        ckpt = torch.load(args.exp_dir / "model.pth", map_location="cpu")
        start_epoch = ckpt["epoch"]
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])

    scaler = torch.cuda.amp.GradScaler()
    for epoch in range(start_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for step, ((a, b), _) in enumerate(loader, start=epoch * len(loader)):
            optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                loss = model(a.cuda(gpu, non_blocking=True), b.cuda(gpu, non_blocking=True))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            update_target(model.module.online, model.module.target, cosine_tau(step, len(loader) * args.epochs))
            if args.rank == 0 and step % 100 == 0:
                print(json.dumps(dict(epoch=epoch, step=step, loss=loss.item())), file=stats_file)
        if args.rank == 0:
            state = dict(epoch=epoch + 1, model=model.state_dict(), optimizer=optimizer.state_dict())
            torch.save(state, args.exp_dir / "model.pth")
    if args.rank == 0:
        torch.save(model.module.online.state_dict(), args.exp_dir / "resnet.pth")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
