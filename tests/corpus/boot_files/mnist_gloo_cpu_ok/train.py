from __future__ import print_function

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(9216, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc(torch.flatten(self.dropout(x), 1)), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0 and args.rank == 0:
            print('Train Epoch: {} [{}/{}]\tLoss: {:.6f}'.format(epoch, batch_idx, len(train_loader), loss.item()))


def test(model, device, test_loader):
    model.eval()
    stats = torch.zeros(3, device=device)
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            stats[0] += F.nll_loss(output, target, reduction='sum')
            stats[1] += output.argmax(dim=1).eq(target).sum()
            stats[2] += len(target)
    dist.all_reduce(stats, op=dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        print('Test set: Average loss: {:.4f}, Accuracy: {:.0f}%'.format(stats[0] / stats[2], 100. * stats[1] / stats[2]))


def main():
    parser = argparse.ArgumentParser(description='PyTorch MNIST Example')
    parser.add_argument('--batch-size', type=int, default=64, metavar='N')
    parser.add_argument('--test-batch-size', type=int, default=1000, metavar='N')
    parser.add_argument('--epochs', type=int, default=14, metavar='N')
    parser.add_argument('--lr', type=float, default=1.0, metavar='LR')
    parser.add_argument('--gamma', type=float, default=0.7, metavar='M')
    parser.add_argument('--no-cuda', action='store_true', default=False, help='disables CUDA training')
    parser.add_argument('--seed', type=int, default=1, metavar='S')
    parser.add_argument('--log-interval', type=int, default=10, metavar='N')
    parser.add_argument('--save-model', action='store_true', default=False)
    parser.add_argument('--data', default='../data')
    parser.add_argument('--backend', type=str, default='gloo', choices=[dist.Backend.GLOO, dist.Backend.NCCL, dist.Backend.MPI])
    args = parser.parse_args()

    use_cuda = not args.no_cuda and torch.cuda.is_available()
    if use_cuda:
        print('Using CUDA')
    torch.manual_seed(args.seed)
    dist.init_process_group(backend=args.backend)
    args.rank = dist.get_rank()
    local_rank = int(os.environ.get('LOCAL_RANK', '0'))
    if use_cuda:
        torch.cuda.set_device(local_rank)
        device = torch.device('cuda', local_rank)
        kwargs = {'num_workers': 1, 'pin_memory': True}
        devices = [local_rank]
    else:
        device = torch.device('cpu')
        kwargs = {}
        devices = None

    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    if local_rank == 0:
        datasets.MNIST(args.data, train=True, download=True)
    dist.barrier()
    dataset1 = datasets.MNIST(args.data, train=True, transform=transform)
    dataset2 = datasets.MNIST(args.data, train=False, transform=transform)
    sampler1 = DistributedSampler(dataset1)
    sampler2 = DistributedSampler(dataset2, shuffle=False)
    train_loader = torch.utils.data.DataLoader(dataset1, args.batch_size, sampler=sampler1, **kwargs)
    test_loader = torch.utils.data.DataLoader(dataset2, args.test_batch_size, sampler=sampler2, **kwargs)

    model = Net().to(device)
    model = nn.parallel.DistributedDataParallel(model, device_ids=devices)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train_loader.sampler.set_epoch(epoch)
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
    if args.save_model and args.rank == 0:
        torch.save(model.module.state_dict(), 'mnist_cnn.pt')
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
