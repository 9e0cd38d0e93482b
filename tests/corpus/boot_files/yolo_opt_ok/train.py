"""Train a small YOLO-like detector: python train.py --data data/shapes.yaml --weights ''"""
import argparse
import os
import sys
import time
from copy import deepcopy
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch.optim import SGD, lr_scheduler

FILE = Path(__file__).resolve()
ROOT = FILE.parents[0]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from models.yolo import Model  # noqa: E402
from utils.dataloaders import create_dataloader  # noqa: E402
from utils.torch_utils import EarlyStopping, ModelEMA, de_parallel, select_device, smart_DDP, torch_distributed_zero_first  # noqa: E402

LOCAL_RANK = int(os.getenv('LOCAL_RANK', -1))
RANK = int(os.getenv('RANK', -1))
WORLD_SIZE = int(os.getenv('WORLD_SIZE', 1))


def train(hyp, opt, device):
    save_dir, epochs, batch_size = Path(opt.save_dir), opt.epochs, opt.batch_size
    w = save_dir / 'weights'
    w.mkdir(parents=True, exist_ok=True)
    last, best = w / 'last.pt', w / 'best.pt'
    cuda = device.type != 'cpu'

    with torch_distributed_zero_first(LOCAL_RANK):
        with open(opt.data, errors='ignore') as f:
            data_dict = yaml.safe_load(f)
    model = Model(nc=int(data_dict['nc'])).to(device)
    if opt.weights:
        with torch_distributed_zero_first(LOCAL_RANK):
            ckpt = torch.load(opt.weights, map_location='cpu')
        model.load_state_dict(ckpt['model'], strict=False)

    optimizer = SGD(model.parameters(), lr=hyp['lr0'], momentum=hyp['momentum'], nesterov=True)
    scheduler = lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda x: (1 - x / epochs) * 0.99 + 0.01)
    ema = ModelEMA(model) if RANK in {-1, 0} else None

    if cuda and RANK == -1 and torch.cuda.device_count() > 1:
        model = torch.nn.DataParallel(model)
    if opt.sync_bn and cuda and RANK != -1:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)
    train_loader, dataset = create_dataloader(
        data_dict['train'], opt.imgsz, batch_size // WORLD_SIZE, rank=LOCAL_RANK, workers=opt.workers, shuffle=True)
    if RANK in {-1, 0}:
        val_loader = create_dataloader(data_dict['val'], opt.imgsz, batch_size // WORLD_SIZE * 2, rank=-1)[0]
    if cuda and RANK != -1:
        model = smart_DDP(model)

    scaler = torch.cuda.amp.GradScaler(enabled=cuda)
    stopper, stop = EarlyStopping(patience=opt.patience), False
    t0, best_fitness = time.time(), 0.0
    for epoch in range(epochs):
        model.train()
        if RANK != -1:
            train_loader.sampler.set_epoch(epoch)
        optimizer.zero_grad()
        for i, (imgs, targets) in enumerate(train_loader):
            with torch.cuda.amp.autocast(enabled=cuda):
                loss = model(imgs.to(device, non_blocking=True).float(), targets.to(device))
                if RANK != -1:
                    loss *= WORLD_SIZE  # gradient averaged between devices in DDP mode
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if ema:
                ema.update(model)
        scheduler.step()

        if RANK in {-1, 0}:
            fitness = -sum(ema.ema(x.to(device).float(), y.to(device)).item() for x, y in val_loader)
            stop = stopper(epoch=epoch, fitness=fitness)
            ckpt = {'epoch': epoch, 'model': de_parallel(model).state_dict(), 'opt': vars(opt)}
            torch.save(ckpt, last)
            if fitness > best_fitness or epoch == 0:
                best_fitness = fitness
                torch.save(ckpt, best)
        if RANK != -1:  # if DDP training
            broadcast_list = [stop if RANK == 0 else None]
            dist.broadcast_object_list(broadcast_list, 0)
            if RANK != 0:
                stop = broadcast_list[0]
        if stop:
            break
    if RANK in {-1, 0}:
        print(f'{epoch + 1} epochs completed in {(time.time() - t0) / 3600:.3f} hours.')
    return deepcopy(best_fitness)


def parse_opt(known=False):
    parser = argparse.ArgumentParser()
    parser.add_argument('--weights', type=str, default='', help='initial weights path')
    parser.add_argument('--data', type=str, default=ROOT / 'data/shapes.yaml', help='dataset.yaml path')
    parser.add_argument('--hyp', type=str, default=ROOT / 'hyps/scratch.yaml', help='hyperparameters path')
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--batch-size', type=int, default=16, help='total batch size for all GPUs')
    parser.add_argument('--imgsz', '--img', '--img-size', type=int, default=640)
    parser.add_argument('--device', default='', help='cuda device, i.e. 0 or 0,1,2,3 or cpu')
    parser.add_argument('--sync-bn', action='store_true', help='use SyncBatchNorm')
    parser.add_argument('--workers', type=int, default=8)
    parser.add_argument('--patience', type=int, default=100)
    parser.add_argument('--save-dir', default='runs/train/exp')
    return parser.parse_known_args()[0] if known else parser.parse_args()


def main(opt):
    if RANK in {-1, 0}:
        print(vars(opt))
    device = select_device(opt.device, batch_size=opt.batch_size)
    if LOCAL_RANK != -1:
        assert opt.batch_size % WORLD_SIZE == 0, '--batch-size must be multiple of WORLD_SIZE'
        assert torch.cuda.device_count() > LOCAL_RANK, 'insufficient CUDA devices for DDP command'
        torch.cuda.set_device(LOCAL_RANK)
        device = torch.device('cuda', LOCAL_RANK)
        dist.init_process_group(backend='nccl' if dist.is_nccl_available() else 'gloo')
    with open(opt.hyp, errors='ignore') as f:
        hyp = yaml.safe_load(f)
    train(hyp, opt, device)
    if WORLD_SIZE > 1 and RANK == 0:
        print('Destroying process group... ')
    if RANK != -1:
        dist.destroy_process_group()


def run(**kwargs):
    opt = parse_opt(True)
    for k, v in kwargs.items():
        setattr(opt, k, v)
    main(opt)
    return opt


if __name__ == '__main__':
    opt = parse_opt()
    main(opt)
