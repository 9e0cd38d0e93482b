"""run.py: a process per worker, started by hand."""
import argparse
import os
import sys
from math import ceil

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.multiprocessing as mp
from torchvision import datasets, transforms

from partitioner import DataPartitioner


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv = nn.Conv2d(1, 10, kernel_size=5)
        self.fc = nn.Linear(1440, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv(x), 2))
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


def partition_dataset(root):
    """ Partitioning MNIST """
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = datasets.MNIST(root, train=True, download=False, transform=transform)
    size = dist.get_world_size()
    bsz = 128 // size
    partition_sizes = [1.0 / size for _ in range(size)]
    partition = DataPartitioner(dataset, partition_sizes).use(dist.get_rank())
    return torch.utils.data.DataLoader(partition, batch_size=bsz, shuffle=True), bsz


def average_gradients(model):
    """ Gradient averaging. """
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size, opt):
    """ Distributed Synchronous SGD Example """
    torch.manual_seed(1234)
    train_set, bsz = partition_dataset(opt.root)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=opt.lr, momentum=0.5)
    num_batches = ceil(len(train_set.dataset) / float(bsz))
    for epoch in range(opt.epochs):
        epoch_loss = 0.0
        for data, target in train_set:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print('Rank ', dist.get_rank(), ', epoch ', epoch, ': ', epoch_loss / num_batches)
    if rank == 0:
        torch.save(model.state_dict(), opt.out)


def init_process(local, opt, fn, backend='gloo'):
    """ Initialize the distributed environment. """
    size = opt.world_size * opt.workers
    rank = opt.rank * opt.workers + local
    dist.init_process_group(backend, init_method=opt.init_method, rank=rank, world_size=size)
    fn(rank, size, opt)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument('--workers', type=int, default=2, help='processes of a node')
    parser.add_argument('--root', default='./mnist')
    parser.add_argument('--out', default='mnist.pt')
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--init_method', type=str, default='tcp://127.0.0.1:29500')
    parser.add_argument('--world_size', type=int, default=1)
    parser.add_argument('--rank', type=int, default=0)
    opt = parser.parse_args()
    os.makedirs(opt.root, exist_ok=True)
    datasets.MNIST(opt.root, train=True, download=True)

    processes = []
    mp.set_start_method("spawn")
    for local in range(opt.workers):
        p = mp.Process(target=init_process, args=(local, opt, run))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
    sys.exit(max(p.exitcode for p in processes))
