import argparse
import time
from pathlib import Path

import torch
import torch.nn as nn

import utils
from engine import evaluate, train_one_epoch
from utils import NativeScalerWithGradNormCount as NativeScaler


def str2bool(v):
    """Converts string to bool type; enables command line arguments in the format of '--arg1 true --arg2 false'"""
    if isinstance(v, bool):
        return v
    if v.lower() in ('yes', 'true', 't', 'y', '1'):
        return True
    elif v.lower() in ('no', 'false', 'f', 'n', '0'):
        return False
    else:
        raise argparse.ArgumentTypeError('Boolean value expected.')


def get_args_parser():
    parser = argparse.ArgumentParser('ConvNeXt training', add_help=False)
    parser.add_argument('--batch_size', default=64, type=int, help='Per GPU batch size')
    parser.add_argument('--epochs', default=300, type=int)
    parser.add_argument('--update_freq', default=1, type=int, help='gradient accumulation steps')
    parser.add_argument('--model', default='convnext_tiny', type=str, metavar='MODEL')
    parser.add_argument('--model_ema', type=str2bool, default=False)
    parser.add_argument('--lr', type=float, default=4e-3, metavar='LR')
    parser.add_argument('--use_amp', type=str2bool, default=False)
    parser.add_argument('--data_path', default='/datasets01/imagenet_full_size/', type=str)
    parser.add_argument('--data_set', default='IMNET', choices=['CIFAR', 'IMNET', 'image_folder'], type=str)
    parser.add_argument('--nb_classes', default=1000, type=int)
    parser.add_argument('--output_dir', default='')
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--seed', default=0, type=int)
    parser.add_argument('--resume', default='')
    parser.add_argument('--auto_resume', type=str2bool, default=True)
    parser.add_argument('--save_ckpt', type=str2bool, default=True)
    parser.add_argument('--save_ckpt_freq', default=1, type=int)
    parser.add_argument('--start_epoch', default=0, type=int, metavar='N')
    parser.add_argument('--dist_eval', type=str2bool, default=True)
    parser.add_argument('--num_workers', default=10, type=int)
    parser.add_argument('--pin_mem', type=str2bool, default=True)
    parser.add_argument('--world_size', default=1, type=int)
    parser.add_argument('--local_rank', default=-1, type=int)
    parser.add_argument('--dist_on_itp', type=str2bool, default=False)
    parser.add_argument('--dist_url', default='env://')
    parser.add_argument('--enable_wandb', type=str2bool, default=False)
    return parser


def main(args):
    utils.init_distributed_mode(args)
    print(args)
    device = torch.device(args.device)
    torch.manual_seed(args.seed + utils.get_rank())
    torch.backends.cudnn.benchmark = True

    dataset_train = utils.build_dataset(is_train=True, args=args)
    dataset_val = utils.build_dataset(is_train=False, args=args)
    num_tasks = utils.get_world_size()
    global_rank = utils.get_rank()
    sampler_train = torch.utils.data.DistributedSampler(
        dataset_train, num_replicas=num_tasks, rank=global_rank, shuffle=True, seed=args.seed,
    )
    if args.dist_eval:
        sampler_val = torch.utils.data.DistributedSampler(
            dataset_val, num_replicas=num_tasks, rank=global_rank, shuffle=False)
    else:
        sampler_val = torch.utils.data.SequentialSampler(dataset_val)
    wandb_logger = utils.WandbLogger(args) if global_rank == 0 and args.enable_wandb else None
    data_loader_train = torch.utils.data.DataLoader(
        dataset_train, sampler=sampler_train, batch_size=args.batch_size,
        num_workers=args.num_workers, pin_memory=args.pin_mem, drop_last=True)
    data_loader_val = torch.utils.data.DataLoader(
        dataset_val, sampler=sampler_val, batch_size=int(1.5 * args.batch_size),
        num_workers=args.num_workers, pin_memory=args.pin_mem, drop_last=False)

    model = nn.Sequential(nn.Conv2d(3, 96, 4, 4), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(96, args.nb_classes))
    model.to(device)
    model_ema = torch.optim.swa_utils.AveragedModel(model) if args.model_ema else None
    model_without_ddp = model
    total_batch_size = args.batch_size * args.update_freq * utils.get_world_size()
    num_training_steps_per_epoch = len(dataset_train) // total_batch_size
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu], find_unused_parameters=False)
        model_without_ddp = model.module
    optimizer = torch.optim.AdamW(model_without_ddp.parameters(), lr=args.lr)
    loss_scaler = NativeScaler()  # if args.use_amp is False, this won't be used
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    utils.auto_load_model(args=args, model_without_ddp=model_without_ddp, optimizer=optimizer, loss_scaler=loss_scaler)

    max_accuracy = 0.0
    print("Start training for %d epochs" % args.epochs)
    start_time = time.time()
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            data_loader_train.sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, data_loader_train, optimizer, device, epoch, loss_scaler,
                        num_training_steps_per_epoch, args.update_freq, use_amp=args.use_amp, model_ema=model_ema)
        if args.output_dir and args.save_ckpt:
            if (epoch + 1) % args.save_ckpt_freq == 0 or epoch + 1 == args.epochs:
                utils.save_model(args=args, model_without_ddp=model_without_ddp, optimizer=optimizer,
                                 loss_scaler=loss_scaler, epoch=epoch)
        acc1 = evaluate(data_loader_val, model, device, use_amp=args.use_amp)
        max_accuracy = max(max_accuracy, acc1)
        print(f'Max accuracy: {max_accuracy:.2f}%')
        if wandb_logger:
            wandb_logger.log({'acc1': acc1, 'epoch': epoch})
    print(f'Training time {time.time() - start_time:.0f}s')
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    parser = argparse.ArgumentParser('ConvNeXt training', parents=[get_args_parser()])
    args = parser.parse_args()
    if args.output_dir:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    main(args)
