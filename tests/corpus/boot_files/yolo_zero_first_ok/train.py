"""Train a small detector on a folder of images. Multi-GPU: torchrun --nproc_per_node 4 train.py --batch 64 --device 0,1,2,3"""
import argparse
import os
import random
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from tqdm import tqdm

from utils.dataloaders import create_dataloader
from utils.torch_utils import EarlyStopping, ModelEMA, de_parallel, select_device, smart_DDP, torch_distributed_zero_first

LOCAL_RANK = int(os.getenv('LOCAL_RANK', -1))  # https://pytorch.org/docs/stable/elastic/run.html
RANK = int(os.getenv('RANK', -1))
WORLD_SIZE = int(os.getenv('WORLD_SIZE', 1))
ROOT = Path(__file__).resolve().parent


def train(opt, device):
    save_dir, epochs, batch_size = Path(opt.save_dir), opt.epochs, opt.batch_size
    w = save_dir / 'weights'
    w.mkdir(parents=True, exist_ok=True)
    last, best = w / 'last.pt', w / 'best.pt'
    seed = opt.seed + 1 + RANK
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

    with torch_distributed_zero_first(LOCAL_RANK):
        data_root = Path(opt.data)
        assert data_root.exists(), f'{data_root} not found'
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).to(device)
    start_epoch, best_fitness = 0, 0.0
    if opt.weights.endswith('.pt'):
        ckpt = torch.load(opt.weights, map_location='cpu', weights_only=False)
        model.load_state_dict(ckpt['model'].float().state_dict(), strict=False)
        start_epoch = ckpt['epoch'] + 1 if opt.resume else 0
    nbs = 64
    accumulate = max(round(nbs / batch_size), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=opt.lr0, momentum=0.937, nesterov=True)
    ema = ModelEMA(model) if RANK in {-1, 0} else None

    # DP mode
    cuda = device.type != 'cpu'
    if cuda and RANK == -1 and torch.cuda.device_count() > 1:
        model = torch.nn.DataParallel(model)
    # SyncBatchNorm
    if opt.sync_bn and cuda and RANK != -1:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)

    train_loader = create_dataloader(data_root / 'train', opt.imgsz, batch_size // WORLD_SIZE, rank=LOCAL_RANK,
                                     workers=opt.workers, shuffle=True, seed=opt.seed)
    if RANK in {-1, 0}:
        val_loader = create_dataloader(data_root / 'val', opt.imgsz, batch_size // WORLD_SIZE * 2, rank=-1,
                                       workers=opt.workers * 2)
    if cuda and RANK != -1:
        model = smart_DDP(model)
    scaler = torch.amp.GradScaler('cuda', enabled=cuda)
    stopper, stop = EarlyStopping(patience=opt.patience), False
    for epoch in range(start_epoch, epochs):
        model.train()
        mloss = torch.zeros(1, device=device)
        if RANK != -1:
            train_loader.sampler.set_epoch(epoch)
        pbar = enumerate(train_loader)
        if RANK in {-1, 0}:
            pbar = tqdm(pbar, total=len(train_loader))
        optimizer.zero_grad()
        for i, (imgs, targets) in pbar:
            imgs = imgs.to(device, non_blocking=True)
            with torch.amp.autocast('cuda', enabled=cuda):
                loss = nn.functional.mse_loss(model(imgs), targets.to(device)) * batch_size
                if RANK != -1:
                    loss *= WORLD_SIZE  # gradient averaged between devices in DDP mode
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if ema:
                    ema.update(model)
            mloss = (mloss * i + loss.detach()) / (i + 1)
        if RANK in {-1, 0}:
            fi = validate(ema.ema, val_loader, device)
            stop = stopper(epoch=epoch, fitness=fi)
            ckpt = {'epoch': epoch, 'model': deepcopy(de_parallel(model)).half(), 'ema': ema.ema, 'optimizer': optimizer.state_dict()}
            torch.save(ckpt, last)
            if fi > best_fitness:
                best_fitness = fi
                torch.save(ckpt, best)
        # EarlyStopping
        if RANK != -1:
            broadcast_list = [stop if RANK == 0 else None]
            dist.broadcast_object_list(broadcast_list, 0)
            if RANK != 0:
                stop = broadcast_list[0]
        if stop:
            break


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    total = 0.0
    for imgs, targets in loader:
        total += nn.functional.mse_loss(model(imgs.to(device).float()), targets.to(device)).item()
    return -total / max(1, len(loader))


def parse_opt(known=False):
    parser = argparse.ArgumentParser()
    parser.add_argument('--weights', type=str, default='', help='initial weights path')
    parser.add_argument('--data', type=str, default='/data/boxes')
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--batch-size', type=int, default=16, help='total batch size for all GPUs')
    parser.add_argument('--imgsz', '--img', '--img-size', type=int, default=640)
    parser.add_argument('--lr0', type=float, default=0.01)
    parser.add_argument('--resume', nargs='?', const=True, default=False, help='resume most recent training')
    parser.add_argument('--device', default='', help='cuda device, i.e. 0 or 0,1,2,3 or cpu')
    parser.add_argument('--sync-bn', action='store_true')
    parser.add_argument('--workers', type=int, default=8)
    parser.add_argument('--save-dir', default=str(ROOT / 'runs/exp'))
    parser.add_argument('--patience', type=int, default=100)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--local_rank', type=int, default=-1, help='Automatic DDP Multi-GPU argument, do not modify')
    return parser.parse_known_args()[0] if known else parser.parse_args()


def main(opt):
    device = select_device(opt.device, batch_size=opt.batch_size)
    if LOCAL_RANK != -1:
        assert opt.batch_size % WORLD_SIZE == 0, f'--batch-size {opt.batch_size} must be multiple of WORLD_SIZE'
        assert torch.cuda.device_count() > LOCAL_RANK, 'insufficient CUDA devices for DDP command'
        torch.cuda.set_device(LOCAL_RANK)
        device = torch.device('cuda', LOCAL_RANK)
        dist.init_process_group(backend="nccl" if dist.is_nccl_available() else "gloo")
    train(opt, device)
    if RANK != -1:
        dist.destroy_process_group()


if __name__ == '__main__':
    opt = parse_opt()
    main(opt)
