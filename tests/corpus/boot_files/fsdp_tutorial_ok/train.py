import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


def setup():
    dist.init_process_group("nccl")


def cleanup():
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.fc1 = nn.Linear(21632, 10)

    def forward(self, x):
        return F.log_softmax(self.fc1(torch.flatten(F.relu(self.conv1(x)), 1)), dim=1)


def train(args, model, rank, train_loader, optimizer, epoch, sampler=None):
    model.train()
    ddp_loss = torch.zeros(2).to(rank)
    if sampler:
        sampler.set_epoch(epoch)
    for data, target in train_loader:
        data, target = data.to(rank), target.to(rank)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target, reduction='sum')
        loss.backward()
        optimizer.step()
        ddp_loss[0] += loss.item()
        ddp_loss[1] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        print('Train Epoch: {} \tLoss: {:.6f}'.format(epoch, ddp_loss[0] / ddp_loss[1]))


def test(model, rank, test_loader):
    model.eval()
    stats = torch.zeros(3).to(rank)
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(rank), target.to(rank)
            out = model(data)
            stats[0] += F.nll_loss(out, target, reduction='sum').item()
            stats[1] += out.argmax(1).eq(target).sum().item()
            stats[2] += len(data)
    dist.all_reduce(stats, op=dist.ReduceOp.SUM)
    if rank == 0:
        print('Test loss {:.4f}, correct {}'.format(stats[0] / stats[2], int(stats[1])))


def fsdp_main(args):
    local_rank = int(os.environ['LOCAL_RANK'])
    rank = int(os.environ['RANK'])
    world_size = int(os.environ['WORLD_SIZE'])
    setup()
    torch.cuda.set_device(local_rank)
    tf = transforms.ToTensor()
    dataset1 = datasets.MNIST('/data', train=True, transform=tf)
    dataset2 = datasets.MNIST('/data', train=False, transform=tf)
    sampler1 = DistributedSampler(dataset1, rank=rank, num_replicas=world_size, shuffle=True)
    sampler2 = DistributedSampler(dataset2, rank=rank, num_replicas=world_size, shuffle=False)
    train_loader = torch.utils.data.DataLoader(dataset1, batch_size=args.batch_size, sampler=sampler1)
    test_loader = torch.utils.data.DataLoader(dataset2, batch_size=args.test_batch_size, sampler=sampler2)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    model = FSDP(Net().to(local_rank), auto_wrap_policy=policy, device_id=torch.cuda.current_device())
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, local_rank, train_loader, optimizer, epoch, sampler=sampler1)
        if args.run_validation:
            test(model, local_rank, test_loader)
        scheduler.step()
    if args.save_model:
        dist.barrier()
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
            states = model.state_dict()
        if rank == 0:
            torch.save(states, "mnist_cnn.pt")
    cleanup()


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description='PyTorch MNIST Example')
    parser.add_argument('--batch-size', type=int, default=64, metavar='N')
    parser.add_argument('--test-batch-size', type=int, default=1000, metavar='N')
    parser.add_argument('--epochs', type=int, default=10, metavar='N')
    parser.add_argument('--lr', type=float, default=1.0, metavar='LR')
    parser.add_argument('--gamma', type=float, default=0.7, metavar='M')
    parser.add_argument('--no-cuda', action='store_true', default=False)
    parser.add_argument('--save-model', action='store_true', default=False)
    parser.add_argument('--run_validation', action='store_false', default=True)
    fsdp_main(parser.parse_args())
