import argparse
import os

import torch
import torch.nn as nn
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision.models as models
import torchvision.datasets as datasets
import torchvision.transforms as T

parser = argparse.ArgumentParser(description='PyTorch ImageNet Training')
parser.add_argument('data', metavar='DIR')
parser.add_argument('-a', '--arch', default='resnet18')
parser.add_argument('-j', '--workers', default=4, type=int)
parser.add_argument('--epochs', default=90, type=int)
parser.add_argument('-b', '--batch-size', default=256, type=int)
parser.add_argument('--lr', default=0.1, type=float)
parser.add_argument('--pretrained', dest='pretrained', action='store_true')
parser.add_argument('--world-size', default=-1, type=int, help='number of nodes')
parser.add_argument('--rank', default=-1, type=int, help='node rank')
parser.add_argument('--dist-url', default='tcp://224.66.41.62:23456', type=str)
parser.add_argument('--dist-backend', default='nccl', type=str)
parser.add_argument('--gpu', default=None, type=int)
parser.add_argument('--multiprocessing-distributed', action='store_true')


def main():
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    ngpus_per_node = torch.cuda.device_count() if torch.cuda.is_available() else 1
    if args.multiprocessing_distributed:
        args.world_size = ngpus_per_node * args.world_size
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
    else:
        if "LOCAL_RANK" in os.environ:
            args.gpu = int(os.environ["LOCAL_RANK"])
        main_worker(args.gpu, ngpus_per_node, args)


def main_worker(gpu, ngpus_per_node, args):
    args.gpu = gpu
    if args.distributed:
        if args.dist_url == "env://" and args.rank == -1:
            args.rank = int(os.environ["RANK"])
        if args.multiprocessing_distributed:
            args.rank = args.rank * ngpus_per_node + gpu
        dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url,
                                world_size=args.world_size, rank=args.rank)
    model = models.__dict__[args.arch](weights="DEFAULT" if args.pretrained else None)
    if args.distributed:
        torch.cuda.set_device(args.gpu)
        model.cuda(args.gpu)
        model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    else:
        device = torch.device("cuda:0")
        model = model.to(device)
    crit = nn.CrossEntropyLoss().cuda(args.gpu)
    opt = torch.optim.SGD(model.parameters(), args.lr)
    ds = datasets.ImageFolder(os.path.join(args.data, 'train'), T.ToTensor())
    sampler = torch.utils.data.distributed.DistributedSampler(ds) if args.distributed else None
    loader = torch.utils.data.DataLoader(ds, args.batch_size, shuffle=(sampler is None), sampler=sampler,
                                         num_workers=args.workers)
    for epoch in range(args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        for x, y in loader:
            loss = crit(model(x.cuda(args.gpu)), y.cuda(args.gpu))
            opt.zero_grad()
            loss.backward()
            opt.step()
        if not args.multiprocessing_distributed or args.rank % ngpus_per_node == 0:
            torch.save(model.state_dict(), f'ck_{args.rank}.pt')
    if args.distributed:
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
