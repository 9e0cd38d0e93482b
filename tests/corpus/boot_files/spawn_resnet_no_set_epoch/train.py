import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def make_loader(batch_size, rank, world):
    tf = torchvision.transforms.ToTensor()
    ds = torchvision.datasets.CIFAR10("./data", transform=tf)
    sampler = DistributedSampler(ds, num_replicas=world, rank=rank, shuffle=True)
    return DataLoader(ds, batch_size=batch_size, sampler=sampler, num_workers=2)


def main_worker(gpu, ngpus, args):
    rank = args.rank * ngpus + gpu
    world = args.world_size * ngpus
    dist.init_process_group("nccl", init_method=args.dist_url, rank=rank, world_size=world)
    torch.cuda.set_device(gpu)
    model = torchvision.models.resnet18(num_classes=10).cuda(gpu)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    crit = torch.nn.CrossEntropyLoss().cuda(gpu)
    loader = make_loader(args.batch_size // ngpus, rank, world)
    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = crit(model(images.cuda(gpu, non_blocking=True)), labels.cuda(gpu, non_blocking=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            torch.save(model.module.state_dict(), f"r18-{epoch}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--world_size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--dist_url", default="tcp://127.0.0.1:3456")
    args = parser.parse_args()
    n = torch.cuda.device_count()
    mp.spawn(main_worker, nprocs=n, args=(n, args))
