"""CIFAR-10 without DistributedDataParallel: gradients are averaged by hand, in buckets."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

from comm import average_gradients, broadcast_parameters
from partition import PartitionedDataset

parser = argparse.ArgumentParser(description='CIFAR-10, data parallel by hand')
parser.add_argument('data', help='folder of the data set')
parser.add_argument('--arch', default='resnet18', choices=['resnet18', 'resnet34', 'vgg16_bn'])
parser.add_argument('--epochs', default=20, type=int)
parser.add_argument('-b', '--batch-size', default=256, type=int, help='over all processes')
parser.add_argument('--lr', default=0.1, type=float)
parser.add_argument('--bucket-mb', default=25, type=float)
parser.add_argument('--half', action='store_true', help='send gradients as float16')


def main():
    args = parser.parse_args()
    local_rank = int(os.environ['LOCAL_RANK'])
    dist.init_process_group(backend='nccl', init_method='env://')
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(local_rank)
    device = torch.device('cuda', local_rank)

    normalize = transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    train_set = datasets.CIFAR10(args.data, train=True, transform=transforms.Compose([
        transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]))
    model = models.__dict__[args.arch](num_classes=10).to(device)
    broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, epochs=args.epochs,
                                                   steps_per_epoch=len(train_set) // world // (args.batch_size // world))
    for epoch in range(args.epochs):
        part = PartitionedDataset(train_set, rank, world, seed=1234 + epoch)
        loader = DataLoader(part, args.batch_size // world, shuffle=True, num_workers=4, drop_last=True)
        total = torch.zeros((), device=device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model, args.bucket_mb, args.half)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        dist.reduce(total, dst=0)
        if rank == 0:
            print(f'epoch {epoch:3d}  loss {total.item() / world / len(loader):.4f}', flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
