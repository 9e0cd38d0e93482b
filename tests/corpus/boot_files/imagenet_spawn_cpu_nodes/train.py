import argparse
import os
import random
import shutil
import time
import warnings

import torch
import torch.nn as nn
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.utils.data.distributed
import torchvision.datasets as datasets
import torchvision.models as models
import torchvision.transforms as transforms

model_names = sorted(name for name in models.__dict__
                     if name.islower() and not name.startswith("__") and callable(models.__dict__[name]))

parser = argparse.ArgumentParser(description='ImageNet Training')
parser.add_argument('data', metavar='DIR', nargs='?', default='imagenet', help='path to dataset')
parser.add_argument('-a', '--arch', metavar='ARCH', default='resnet18', choices=model_names)
parser.add_argument('-j', '--workers', default=4, type=int, metavar='N')
parser.add_argument('--epochs', default=90, type=int, metavar='N')
parser.add_argument('--start-epoch', default=0, type=int, metavar='N')
parser.add_argument('-b', '--batch-size', default=256, type=int, metavar='N')
parser.add_argument('--lr', '--learning-rate', default=0.1, type=float, metavar='LR', dest='lr')
parser.add_argument('--momentum', default=0.9, type=float, metavar='M')
parser.add_argument('--resume', default='', type=str, metavar='PATH')
parser.add_argument('-e', '--evaluate', dest='evaluate', action='store_true')
parser.add_argument('--world_size', default=1, type=int, help='number of nodes')
parser.add_argument('--rank', default=0, type=int, help='node rank')
parser.add_argument('--init_method', default='tcp://127.0.0.1:23456', type=str)
parser.add_argument('--dist-backend', default='nccl', type=str)
parser.add_argument('--seed', default=None, type=int)
parser.add_argument('--gpu', default=None, type=int)

best_acc1 = 0


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        cudnn.deterministic = True
        warnings.warn('seeded training is slower')
    ngpus_per_node = torch.cuda.device_count()
    args.world_size = ngpus_per_node * args.world_size
    mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))


def main_worker(gpu, ngpus_per_node, args):
    global best_acc1
    args.gpu = gpu
    args.rank = args.rank * ngpus_per_node + gpu
    dist.init_process_group(backend=args.dist_backend, init_method=args.init_method,
                            world_size=args.world_size, rank=args.rank)
    torch.cuda.set_device(args.gpu)
    model = models.__dict__[args.arch]().cuda(args.gpu)
    args.batch_size = int(args.batch_size / args.world_size)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    criterion = nn.CrossEntropyLoss().cuda(args.gpu)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum)

    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume, map_location='cuda:{}'.format(args.gpu))
        args.start_epoch = checkpoint['epoch']
        model.load_state_dict(checkpoint['state_dict'])

    tf = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    train_dataset = datasets.ImageFolder(os.path.join(args.data, 'train'), tf)
    val_dataset = datasets.ImageFolder(os.path.join(args.data, 'val'), tf)
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
    val_sampler = torch.utils.data.distributed.DistributedSampler(val_dataset, shuffle=False, drop_last=True)
    train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler,
                                               shuffle=(train_sampler is None), num_workers=args.workers)
    val_loader = torch.utils.data.DataLoader(val_dataset, batch_size=args.batch_size, sampler=val_sampler)

    if args.evaluate:
        validate(val_loader, model, args)
        dist.destroy_process_group()
        return

    for epoch in range(args.start_epoch, args.epochs):
        train_sampler.set_epoch(epoch)
        start = time.time()
        model.train()
        for images, target in train_loader:
            loss = criterion(model(images.cuda(args.gpu)), target.cuda(args.gpu))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        acc1 = validate(val_loader, model, args)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if args.rank % ngpus_per_node == 0:
            print(epoch, time.time() - start, acc1)
            torch.save({'epoch': epoch + 1, 'state_dict': model.state_dict()}, 'checkpoint.pth.tar')
            if is_best:
                shutil.copyfile('checkpoint.pth.tar', 'model_best.pth.tar')
    dist.destroy_process_group()


def validate(loader, model, args):
    model.eval()
    stats = torch.zeros(2, device=args.gpu)
    with torch.no_grad():
        for images, target in loader:
            pred = model(images.cuda(args.gpu)).argmax(1).cpu()
            stats[0] += (pred == target).sum()
            stats[1] += target.numel()
    dist.all_reduce(stats, dist.ReduceOp.SUM)
    return (stats[0] / stats[1]).item()


if __name__ == '__main__':
    main()
