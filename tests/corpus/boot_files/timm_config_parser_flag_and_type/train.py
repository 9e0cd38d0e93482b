#!/usr/bin/env python3
""" ImageNet Training Script """
import argparse
import logging
import os
from collections import OrderedDict

import torch
import torch.nn as nn
import yaml
from torch.nn.parallel import DistributedDataParallel as NativeDDP

try:
    from apex import amp
    has_apex = True
except ImportError:
    has_apex = False

try:
    import wandb
    has_wandb = True
except ImportError:
    has_wandb = False

_logger = logging.getLogger('train')

config_parser = parser = argparse.ArgumentParser(description='Training Config', add_help=False)
parser.add_argument('-c', '--config', default='', type=str, metavar='FILE', help='YAML config file')

parser = argparse.ArgumentParser(description='PyTorch ImageNet Training')
group = parser.add_argument_group('Dataset parameters')
group.add_argument('data', nargs='?', metavar='DIR', const=None)
group.add_argument('--data-dir', metavar='DIR')
group.add_argument('--num-classes', type=int, default=None)

group = parser.add_argument_group('Model parameters')
group.add_argument('--model', default='resnet50', type=str)
group.add_argument('--pretrained', action='store_true', default=False)
group.add_argument('--input-size', default=None, nargs=3, type=int)
scripting_group = group.add_mutually_exclusive_group()
scripting_group.add_argument('--torchscript', dest='torchscript', action='store_true')
scripting_group.add_argument('--torchcompile', nargs='?', type=str, default=None, const='inductor')

group = parser.add_argument_group('Optimizer parameters')
group.add_argument('--opt', default='sgd', type=str)
group.add_argument('--opt-eps', default=None, type=float)
group.add_argument('--lr', type=float, default=None)
group.add_argument('--warmup-lr', type=float, default=1e-5)
group.add_argument('--epochs', type=int, default=300)
group.add_argument('--no-resume-opt', action='store_true', default=False)

group = parser.add_argument_group('Miscellaneous parameters')
group.add_argument('--amp', action='store_true', default=False)
group.add_argument('--local-rank', default=int(os.environ.get('LOCAL_RANK', 0)), type=int)
group.add_argument('-j', '--workers', type=int, default=4)


def _parse_args():
    args_config, remaining = config_parser.parse_known_args()
    if args_config.config:
        with open(args_config.config, 'r') as f:
            cfg = yaml.safe_load(f)
            parser.set_defaults(**cfg)
    args = parser.parse_args(remaining)
    args_text = yaml.safe_dump(args.__dict__, default_flow_style=False)
    return args, args_text


def main():
    args, args_text = _parse_args()
    args.world_size = int(os.environ.get('WORLD_SIZE', 1))
    args.rank = int(os.environ.get('RANK', 0))
    args.distributed = args.world_size > 1
    device = torch.device('cuda', args.local_rank)
    torch.cuda.set_device(device)
    if args.distributed:
        torch.distributed.init_process_group(backend='nccl', init_method='env://')
    model = nn.Linear(10, args.num_classes or 10).to(device)
    if args.distributed:
        model = NativeDDP(model, device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr or 1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(64, 10), torch.randint(10, (64,)))
    sampler = torch.utils.data.distributed.DistributedSampler(data) if args.distributed else None
    loader = torch.utils.data.DataLoader(data, 8, sampler=sampler, num_workers=args.workers)
    for epoch in range(args.epochs):
        if args.distributed and hasattr(loader.sampler, 'set_epoch'):
            loader.sampler.set_epoch(epoch)
        losses = train_one_epoch(model, loader, optimizer, device)
        if args.distributed:
            torch.distributed.all_reduce(losses, op=torch.distributed.ReduceOp.SUM)
            losses /= args.world_size
        if args.rank == 0:
            _logger.info('%s', OrderedDict(epoch=epoch, loss=losses.item()))
    if args.distributed:
        torch.distributed.destroy_process_group()


def train_one_epoch(model, loader, optimizer, device):
    total = torch.zeros(1, device=device)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total


if __name__ == '__main__':
    main()
