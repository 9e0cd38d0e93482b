#!/usr/bin/env python3
""" Image classification training: a general script with a config file, EMA, AMP and distributed BN. """
import argparse
import json
import logging
import os
import time
from collections import OrderedDict
from contextlib import suppress
from datetime import datetime

import torch
import torch.nn as nn
import yaml
from torch.nn.parallel import DistributedDataParallel as NativeDDP

from data import create_dataset, create_loader, resolve_data_config
from models import create_model, list_models, load_checkpoint, resume_checkpoint
from utils import AverageMeter, CheckpointSaver, ModelEma, accuracy, distribute_bn, init_distributed_device, is_primary, \
    random_seed, reduce_tensor, setup_default_logging

try:
    from apex.parallel import DistributedDataParallel as ApexDDP, convert_syncbn_model
    has_apex = True
except ImportError:
    has_apex = False
try:
    import wandb
    has_wandb = True
except ImportError:
    has_wandb = False

_logger = logging.getLogger('train')

# The first arg parser parses out only the --config argument, this argument is used to
# load a yaml file containing key-values that override the defaults for the main parser below
config_parser = parser = argparse.ArgumentParser(description='Training Config', add_help=False)
parser.add_argument('-c', '--config', default='', type=str, metavar='FILE', help='YAML config file')

parser = argparse.ArgumentParser(description='PyTorch ImageNet Training')
group = parser.add_argument_group('Dataset parameters')
parser.add_argument('data', nargs='?', metavar='DIR', const=None, help='path to dataset (positional is *deprecated*)')
parser.add_argument('--data-dir', metavar='DIR', help='path to dataset (root dir)')
parser.add_argument('--dataset', metavar='NAME', default='')
group.add_argument('--train-split', metavar='NAME', default='train')
group.add_argument('--val-split', metavar='NAME', default='validation')
group.add_argument('--class-map', default='', type=str, metavar='FILENAME')

group = parser.add_argument_group('Model parameters')
group.add_argument('--model', default='resnet50', type=str, metavar='MODEL')
group.add_argument('--pretrained', action='store_true', default=False)
group.add_argument('--initial-checkpoint', default='', type=str, metavar='PATH')
group.add_argument('--resume', default='', type=str, metavar='PATH')
group.add_argument('--num-classes', type=int, default=None, metavar='N')
group.add_argument('--img-size', type=int, default=None, metavar='N')
group.add_argument('--input-size', default=None, nargs=3, type=int, metavar='N')
group.add_argument('-b', '--batch-size', type=int, default=128, metavar='N')
group.add_argument('--channels-last', action='store_true', default=False)
group.add_argument('--grad-accum-steps', type=int, default=1, metavar='N')

group = parser.add_argument_group('Optimizer parameters')
group.add_argument('--opt', default='sgd', type=str, metavar='OPTIMIZER', choices=['sgd', 'adamw', 'lamb'])
group.add_argument('--opt-betas', default=None, type=float, nargs='+', metavar='BETA')
group.add_argument('--momentum', type=float, default=0.9, metavar='M')
group.add_argument('--weight-decay', type=float, default=2e-5)
group.add_argument('--clip-grad', type=float, default=None, metavar='NORM')
group.add_argument('--clip-mode', type=str, default='norm', choices=['norm', 'value'])

group = parser.add_argument_group('Learning rate schedule parameters')
group.add_argument('--sched', type=str, default='cosine', metavar='SCHEDULER')
group.add_argument('--lr', type=float, default=None, metavar='LR')
group.add_argument('--lr-base', type=float, default=0.1, metavar='LR')
group.add_argument('--lr-base-size', type=int, default=256, metavar='DIV')
group.add_argument('--epochs', type=int, default=300, metavar='N')
group.add_argument('--warmup-epochs', type=int, default=5, metavar='N')

group = parser.add_argument_group('Batch norm parameters')
group.add_argument('--sync-bn', action='store_true')
group.add_argument('--dist-bn', type=str, default='reduce', choices=['broadcast', 'reduce', ''])

group = parser.add_argument_group('Model exponential moving average parameters')
group.add_argument('--model-ema', action='store_true', default=False)
group.add_argument('--model-ema-decay', type=float, default=0.9998)

group = parser.add_argument_group('Miscellaneous parameters')
group.add_argument('--seed', type=int, default=42, metavar='S')
group.add_argument('--log-interval', type=int, default=50, metavar='N')
group.add_argument('--checkpoint-hist', type=int, default=10, metavar='N')
group.add_argument('-j', '--workers', type=int, default=4, metavar='N')
group.add_argument('--amp', action='store_true', default=False)
group.add_argument('--amp-dtype', default='float16', type=str, choices=['float16', 'bfloat16'])
group.add_argument('--no-ddp-bb', action='store_true', default=False)
group.add_argument('--pin-mem', action='store_true', default=False)
group.add_argument('--output', default='', type=str, metavar='PATH')
group.add_argument('--experiment', default='', type=str, metavar='NAME')
group.add_argument('--eval-metric', default='top1', type=str, metavar='EVAL_METRIC')
group.add_argument('--device', default='cuda', type=str)
group.add_argument('--dist-backend', default=None, type=str)
group.add_argument('--local-rank', default=0, type=int)
group.add_argument('--log-wandb', action='store_true', default=False)


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
    setup_default_logging()
    args, args_text = _parse_args()
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    args.grad_accum_steps = max(1, args.grad_accum_steps)
    device = init_distributed_device(args)
    if args.distributed:
        _logger.info('Training in distributed mode with multiple processes, 1 device per process.'
                     f'Process {args.rank}, total {args.world_size}, device {args.device}.')
    else:
        _logger.info(f'Training with a single process on 1 device ({args.device}).')
    assert args.rank >= 0
    amp_dtype = torch.bfloat16 if args.amp_dtype == 'bfloat16' else torch.float16
    random_seed(args.seed, args.rank)

    if args.model not in list_models():
        raise RuntimeError(f'Unknown model ({args.model})')
    model = create_model(args.model, pretrained=args.pretrained, num_classes=args.num_classes)
    data_config = resolve_data_config(vars(args), verbose=is_primary(args))
    model.to(device=device)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    if args.distributed and args.sync_bn:
        args.dist_bn = ''  # disable dist_bn when sync BN active
        if has_apex and args.dist_backend == 'apex':
            model = convert_syncbn_model(model)
        else:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if args.lr is None:
        global_batch_size = args.batch_size * args.world_size * args.grad_accum_steps
        args.lr = args.lr_base * global_batch_size / args.lr_base_size
    if args.opt == 'sgd':
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=args.opt_betas or (0.9, 0.999))

    amp_autocast = suppress
    loss_scaler = None
    if args.amp:
        def amp_autocast():
            return torch.amp.autocast(device_type=device.type, dtype=amp_dtype)
        if device.type == 'cuda' and amp_dtype == torch.float16:
            loss_scaler = torch.amp.GradScaler('cuda')

    resume_epoch = resume_checkpoint(model, args.resume, optimizer, loss_scaler) if args.resume else None
    model_ema = None
    if args.model_ema:
        model_ema = ModelEma(model, decay=args.model_ema_decay)
        if args.resume:
            load_checkpoint(model_ema.module, args.resume, use_ema=True)
    if args.distributed:
        if has_apex and args.dist_backend == 'apex':
            model = ApexDDP(model, delay_allreduce=True)
        else:
            model = NativeDDP(model, device_ids=[device], broadcast_buffers=not args.no_ddp_bb)

    root = args.data or args.data_dir
    dataset_train = create_dataset(args.dataset, root=root, split=args.train_split, input_size=data_config['input_size'])
    dataset_eval = create_dataset(args.dataset, root=root, split=args.val_split, input_size=data_config['input_size'])
    loader_train = create_loader(dataset_train, batch_size=args.batch_size, is_training=True,
                                 num_workers=args.workers, distributed=args.distributed, pin_memory=args.pin_mem)
    loader_eval = create_loader(dataset_eval, batch_size=args.batch_size, is_training=False,
                                num_workers=args.workers, distributed=args.distributed, pin_memory=args.pin_mem)
    loss_fn = nn.CrossEntropyLoss().to(device=device)

    saver, output_dir = None, None
    if is_primary(args):
        exp_name = args.experiment or '-'.join([datetime.now().strftime("%Y%m%d-%H%M%S"), args.model])
        output_dir = os.path.join(args.output or './output/train', exp_name)
        os.makedirs(output_dir, exist_ok=True)
        saver = CheckpointSaver(model=model, optimizer=optimizer, args=args, model_ema=model_ema, amp_scaler=loss_scaler,
                                checkpoint_dir=output_dir, max_history=args.checkpoint_hist)
        with open(os.path.join(output_dir, 'args.yaml'), 'w') as f:
            f.write(args_text)
    if is_primary(args) and args.log_wandb:
        if has_wandb:
            wandb.init(project=args.experiment, config=args)
        else:
            _logger.warning("You've requested to log metrics to wandb but package not found.")

    start_epoch = resume_epoch or 0
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    best_metric = None
    try:
        for epoch in range(start_epoch, args.epochs):
            if args.distributed and hasattr(loader_train.sampler, 'set_epoch'):
                loader_train.sampler.set_epoch(epoch)
            train_metrics = train_one_epoch(epoch, model, loader_train, optimizer, loss_fn, args, device=device,
                                            amp_autocast=amp_autocast, loss_scaler=loss_scaler, model_ema=model_ema)
            if args.distributed and args.dist_bn in ('broadcast', 'reduce'):
                if is_primary(args):
                    _logger.info("Distributing BatchNorm running means and vars")
                distribute_bn(model, args.world_size, args.dist_bn == 'reduce')
            eval_metrics = validate(model, loader_eval, loss_fn, args, device=device, amp_autocast=amp_autocast)
            lr_scheduler.step()
            if saver is not None:
                best_metric = saver.save_checkpoint(epoch, metric=eval_metrics[args.eval_metric])
                with open(os.path.join(output_dir, 'summary.json'), 'a') as f:
                    f.write(json.dumps({'epoch': epoch, **train_metrics, **eval_metrics}) + '\n')
    except KeyboardInterrupt:
        pass
    if best_metric is not None:
        _logger.info('*** Best metric: {0}'.format(best_metric))
    if args.distributed:
        torch.distributed.destroy_process_group()


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, device=torch.device('cuda'), amp_autocast=suppress,
                    loss_scaler=None, model_ema=None):
    has_no_sync = hasattr(model, "no_sync")
    losses_m, batch_time_m = AverageMeter(), AverageMeter()
    model.train()
    accum_steps = args.grad_accum_steps
    optimizer.zero_grad()
    end = time.time()
    for batch_idx, (input, target) in enumerate(loader):
        need_update = (batch_idx + 1) % accum_steps == 0
        input, target = input.to(device), target.to(device)
        if args.channels_last:
            input = input.contiguous(memory_format=torch.channels_last)

        def _forward():
            with amp_autocast():
                loss = loss_fn(model(input), target)
            return loss / accum_steps if accum_steps > 1 else loss

        def _backward(_loss):
            if loss_scaler is not None:
                loss_scaler.scale(_loss).backward()
            else:
                _loss.backward()

        if has_no_sync and not need_update:
            with model.no_sync():
                loss = _forward()
                _backward(loss)
        else:
            loss = _forward()
            _backward(loss)
        losses_m.update(loss.item() * accum_steps, input.size(0))
        if not need_update:
            continue
        if args.clip_grad is not None:
            if loss_scaler is not None:
                loss_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        if loss_scaler is not None:
            loss_scaler.step(optimizer)
            loss_scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        if model_ema is not None:
            model_ema.update(model)
        batch_time_m.update(time.time() - end)
        end = time.time()
        if batch_idx % args.log_interval == 0:
            loss_now = losses_m.avg
            if args.distributed:
                loss_now = reduce_tensor(torch.tensor(losses_m.avg, device=device), args.world_size).item()
            if is_primary(args):
                _logger.info(f'Train: {epoch} [{batch_idx}/{len(loader)}] Loss: {loss_now:#.3g} Time: {batch_time_m.avg:.3f}s')
    return OrderedDict([('loss', losses_m.avg)])


def validate(model, loader, loss_fn, args, device=torch.device('cuda'), amp_autocast=suppress):
    losses_m, top1_m = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for batch_idx, (input, target) in enumerate(loader):
            input, target = input.to(device), target.to(device)
            with amp_autocast():
                output = model(input)
                loss = loss_fn(output, target)
            acc1 = accuracy(output, target)
            if args.distributed:
                reduced_loss = reduce_tensor(loss.data, args.world_size)
                acc1 = reduce_tensor(acc1, args.world_size)
            else:
                reduced_loss = loss.data
            losses_m.update(reduced_loss.item(), input.size(0))
            top1_m.update(acc1.item(), output.size(0))
    return OrderedDict([('loss', losses_m.avg), ('top1', top1_m.avg)])


if __name__ == '__main__':
    main()
