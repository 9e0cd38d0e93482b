import argparse
import os

import deepspeed
import torch
import torch.nn as nn
import torchvision
import torchvision.transforms as transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=2)
        self.fc = nn.Linear(16 * 15 * 15, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def add_argument():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("-b", "--batch_size", default=32, type=int)
    parser.add_argument("-e", "--epochs", default=30, type=int)
    parser.add_argument("--local_rank", type=int, default=-1, help="local rank passed from distributed launcher")
    parser.add_argument("--log-interval", type=int, default=2000)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main():
    args = add_argument()
    if args.local_rank == -1:
        args.local_rank = int(os.environ["LOCAL_RANK"])
    deepspeed.init_distributed()
    torch.cuda.set_device(args.local_rank)

    if torch.distributed.get_rank() != 0:
        torch.distributed.barrier()
    trainset = torchvision.datasets.CIFAR10("./data", train=True, download=True, transform=transforms.ToTensor())
    if torch.distributed.get_rank() == 0:
        torch.distributed.barrier()

    net = Net()
    engine, optimizer, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=trainset)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            x, y = x.to(engine.local_rank), y.to(engine.local_rank)
            loss = criterion(engine(x), y)
            engine.backward(loss)
            engine.step()
            if engine.local_rank == 0 and i % args.log_interval == 0:
                print(epoch, i, loss.item())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
