import argparse
import json
import math
import os
import sys
from pathlib import Path

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torchvision import datasets, models as torchvision_models, transforms

import utils

torchvision_archs = sorted(name for name in torchvision_models.__dict__
                           if name.islower() and not name.startswith("__")
                           and callable(torchvision_models.__dict__[name]))


def get_args_parser():
    parser = argparse.ArgumentParser('DINO', add_help=False)
    parser.add_argument('--arch', default='vit_small', type=str,
                        choices=['vit_tiny', 'vit_small', 'vit_base', 'xcit'] + torchvision_archs)
    parser.add_argument('--out_dim', default=65536, type=int)
    parser.add_argument('--norm_last_layer', default=True, type=utils.bool_flag)
    parser.add_argument('--momentum_teacher', default=0.996, type=float)
    parser.add_argument('--use_bn_in_head', default=False, type=utils.bool_flag)
    parser.add_argument('--teacher_temp', default=0.04, type=float)
    parser.add_argument('--use_fp16', type=utils.bool_flag, default=True)
    parser.add_argument('--batch_size_per_gpu', default=64, type=int)
    parser.add_argument('--epochs', default=100, type=int)
    parser.add_argument("--lr", default=0.0005, type=float)
    parser.add_argument('--optimizer', default='adamw', type=str, choices=['adamw', 'sgd', 'lars'])
    parser.add_argument('--global_crops_scale', type=float, nargs='+', default=(0.4, 1.))
    parser.add_argument('--local_crops_number', type=int, default=8)
    parser.add_argument('--data_path', default='/path/to/imagenet/train/', type=str)
    parser.add_argument('--output_dir', default=".", type=str)
    parser.add_argument('--saveckp_freq', default=20, type=int)
    parser.add_argument('--seed', default=0, type=int)
    parser.add_argument('--num_workers', default=10, type=int)
    parser.add_argument("--dist_url", default="env://", type=str)
    parser.add_argument("--local_rank", default=0, type=int, help="Please ignore and do not set this argument.")
    return parser


def train_dino(args):
    utils.init_distributed_mode(args)
    utils.fix_random_seeds(args.seed)
    print("\n".join("%s: %s" % (k, str(v)) for k, v in sorted(dict(vars(args)).items())))
    cudnn.benchmark = True

    dataset = datasets.ImageFolder(args.data_path, transform=TwoCrops(args.global_crops_scale))
    sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)
    data_loader = torch.utils.data.DataLoader(dataset, sampler=sampler, batch_size=args.batch_size_per_gpu,
                                              num_workers=args.num_workers, pin_memory=True, drop_last=True)
    print(f"Data loaded: there are {len(dataset)} images.")

    student, teacher = build_net(args), build_net(args)
    student, teacher = student.cuda(), teacher.cuda()
    if utils.has_batchnorms(student):
        student = nn.SyncBatchNorm.convert_sync_batchnorm(student)
        teacher = nn.SyncBatchNorm.convert_sync_batchnorm(teacher)
    student = nn.parallel.DistributedDataParallel(student, device_ids=[args.gpu])
    teacher.load_state_dict(student.module.state_dict())
    for p in teacher.parameters():
        p.requires_grad = False

    dino_loss = DINOLoss(args.out_dim, args.teacher_temp).cuda()
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr * (args.batch_size_per_gpu * utils.get_world_size()) / 256.)
    fp16_scaler = torch.amp.GradScaler('cuda') if args.use_fp16 else None

    to_restore = {"epoch": 0}
    utils.restart_from_checkpoint(os.path.join(args.output_dir, "checkpoint.pth"), run_variables=to_restore,
                                  student=student, teacher=teacher, optimizer=optimizer, dino_loss=dino_loss)
    for epoch in range(to_restore["epoch"], args.epochs):
        data_loader.sampler.set_epoch(epoch)
        loss = train_one_epoch(student, teacher, dino_loss, data_loader, optimizer, fp16_scaler, args)
        save_dict = {'student': student.state_dict(), 'teacher': teacher.state_dict(), 'epoch': epoch + 1,
                     'optimizer': optimizer.state_dict(), 'dino_loss': dino_loss.state_dict()}
        utils.save_on_master(save_dict, os.path.join(args.output_dir, 'checkpoint.pth'))
        if args.saveckp_freq and epoch % args.saveckp_freq == 0:
            utils.save_on_master(save_dict, os.path.join(args.output_dir, f'checkpoint{epoch:04}.pth'))
        if utils.is_main_process():
            with (Path(args.output_dir) / "log.txt").open("a") as f:
                f.write(json.dumps({'train_loss': loss, 'epoch': epoch}) + "\n")
    dist.destroy_process_group()


def train_one_epoch(student, teacher, dino_loss, data_loader, optimizer, fp16_scaler, args):
    meter = utils.SmoothedValue()
    for images, _ in data_loader:
        images = [im.cuda(non_blocking=True) for im in images]
        with torch.amp.autocast('cuda', enabled=fp16_scaler is not None):
            teacher_output = teacher(torch.cat(images[:2]))
            student_output = student(torch.cat(images))
            loss = dino_loss(student_output, teacher_output)
        if not math.isfinite(loss.item()):
            print("Loss is {}, stopping training".format(loss.item()), force=True)
            sys.exit(1)
        optimizer.zero_grad()
        if fp16_scaler is None:
            loss.backward()
            optimizer.step()
        else:
            fp16_scaler.scale(loss).backward()
            fp16_scaler.step(optimizer)
            fp16_scaler.update()
        with torch.no_grad():
            m = args.momentum_teacher
            for param_q, param_k in zip(student.module.parameters(), teacher.parameters()):
                param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)
        meter.update(loss.item())
    meter.synchronize_between_processes()
    return meter.global_avg


class DINOLoss(nn.Module):
    def __init__(self, out_dim, teacher_temp, student_temp=0.1, center_momentum=0.9):
        super().__init__()
        self.student_temp, self.teacher_temp, self.center_momentum = student_temp, teacher_temp, center_momentum
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student_output, teacher_output):
        teacher_out = F.softmax((teacher_output - self.center) / self.teacher_temp, dim=-1).detach()
        student_out = F.log_softmax(student_output / self.student_temp, dim=-1)[:len(teacher_out)]
        self.update_center(teacher_output)
        return torch.sum(-teacher_out * student_out, dim=-1).mean()

    @torch.no_grad()
    def update_center(self, teacher_output):
        batch_center = torch.sum(teacher_output, dim=0, keepdim=True)
        dist.all_reduce(batch_center)
        batch_center = batch_center / (len(teacher_output) * dist.get_world_size())
        self.center = self.center * self.center_momentum + batch_center * (1 - self.center_momentum)


class TwoCrops:
    def __init__(self, scale):
        self.aug = transforms.Compose([transforms.RandomResizedCrop(224, scale=tuple(scale)), transforms.ToTensor()])

    def __call__(self, image):
        return [self.aug(image), self.aug(image)]


def build_net(args):
    if args.arch in torchvision_models.__dict__.keys():
        net = torchvision_models.__dict__[args.arch]()
        return nn.Sequential(net, nn.Linear(1000, args.out_dim))
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, args.out_dim))


if __name__ == '__main__':
    parser = argparse.ArgumentParser('DINO', parents=[get_args_parser()])
    args = parser.parse_args()
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    train_dino(args)
