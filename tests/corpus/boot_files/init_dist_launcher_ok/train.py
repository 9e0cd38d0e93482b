"""Segmentation with a registry of launchers; config files are Python."""
import argparse
import copy
import importlib.util
import os
import os.path as osp
import time

import torch
from torch.nn.parallel import DistributedDataParallel

from core.dist_utils import get_dist_info, init_dist, master_only
from core.loader import build_dataloader


def parse_args():
    parser = argparse.ArgumentParser(description='Train a segmentor')
    parser.add_argument('config', help='train config file path')
    parser.add_argument('--work-dir', help='the dir to save logs and models')
    parser.add_argument('--load-from', help='the checkpoint file to load weights from')
    parser.add_argument('--resume-from', help='the checkpoint file to resume from')
    parser.add_argument('--no-validate', action='store_true')
    group_gpus = parser.add_mutually_exclusive_group()
    group_gpus.add_argument('--gpus', type=int, help='(Deprecated) number of gpus')
    group_gpus.add_argument('--gpu-id', type=int, default=0, help='id of gpu (only for non-distributed training)')
    parser.add_argument('--seed', type=int, default=None, help='random seed')
    parser.add_argument('--diff_seed', action='store_true')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='job launcher')
    parser.add_argument('--local_rank', type=int, default=0)
    args = parser.parse_args()
    if 'LOCAL_RANK' not in os.environ:
        os.environ['LOCAL_RANK'] = str(args.local_rank)
    return args


def load_config(path):
    spec = importlib.util.spec_from_file_location('cfg', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {k: v for k, v in vars(module).items() if not k.startswith('_')}


@master_only
def save(model, optimizer, epoch, work_dir):
    torch.save({'state_dict': model.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': epoch},
               osp.join(work_dir, f'epoch_{epoch}.pth'))


@master_only
def log(text):
    print(time.strftime('%H:%M:%S'), text, flush=True)


def main():
    args = parse_args()
    cfg = load_config(args.config)
    work_dir = args.work_dir or osp.join('./work_dirs', osp.splitext(osp.basename(args.config))[0])
    os.makedirs(work_dir, exist_ok=True)
    torch.backends.cudnn.benchmark = cfg.get('cudnn_benchmark', False)

    # init distributed env first, since logger depends on the dist info.
    if args.launcher == 'none':
        distributed = False
        device = torch.device('cuda', args.gpu_id)
    else:
        distributed = True
        init_dist(args.launcher, **cfg['dist_params'])
        device = torch.device('cuda', torch.cuda.current_device())
    rank, world_size = get_dist_info()
    seed = args.seed if args.seed is not None else 0
    torch.manual_seed(seed + rank if args.diff_seed else seed)

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, cfg['classes'], 1))
    model.to(device)
    if distributed:
        model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), **copy.deepcopy(cfg['optimizer']))
    start = 0
    if args.resume_from:
        state = torch.load(args.resume_from, map_location='cpu')
        model.load_state_dict(state['state_dict'])
        optimizer.load_state_dict(state['optimizer'])
        start = state['epoch'] + 1
    elif args.load_from:
        model.load_state_dict(torch.load(args.load_from, map_location='cpu')['state_dict'])

    loader = build_dataloader(cfg['data_root'], cfg['samples_per_gpu'], cfg['workers_per_gpu'], dist=distributed, seed=seed)
    for epoch in range(start, cfg['max_epochs']):
        if hasattr(loader.sampler, 'set_epoch'):
            loader.sampler.set_epoch(epoch)
        for i, (img, gt) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(img.to(device)), gt.to(device), ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 50 == 0:
                log(f'Epoch [{epoch}][{i}/{len(loader)}] world {world_size} loss {loss.item():.4f}')
        save(model, optimizer, epoch, work_dir)
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
