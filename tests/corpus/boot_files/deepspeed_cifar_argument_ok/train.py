import argparse
import json

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import torchvision.transforms as transforms
from deepspeed.accelerator import get_accelerator


def add_argument():
    parser = argparse.ArgumentParser(description="CIFAR on DeepSpeed")
    parser.add_argument("-b", "--batch_size", default=32, type=int)
    parser.add_argument("-e", "--epochs", default=30, type=int, help="number of total epochs (default: 30)")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=-1,
                        help="local rank passed from distributed launcher")
    parser.add_argument("--log-interval", type=int, default=200)
    parser.add_argument("--settings", default="ds_config.json", help="what DeepSpeed is told")
    parser.add_argument("--moe", default=False, action="store_true", help="use deepspeed mixture of experts (moe)")
    parser.add_argument("--num-experts", type=int, nargs="+", default=[1])
    parser.add_argument("--noisy-gate-policy", default=None, type=str, choices=["RSample", "Jitter"])
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 84)
        self.moe = args.moe
        if self.moe:
            self.moe_layers = nn.ModuleList(
                deepspeed.moe.layer.MoE(hidden_size=84, expert=nn.Linear(84, 84), num_experts=n,
                                        noisy_gate_policy=args.noisy_gate_policy)
                for n in args.num_experts
            )
        self.fc2 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x))).flatten(1)
        x = F.relu(self.fc1(x))
        if self.moe:
            for layer in self.moe_layers:
                x, _, _ = layer(x)
        return self.fc2(x)


def test(engine, testset, local_device):
    loader = torch.utils.data.DataLoader(testset, batch_size=64, shuffle=False)
    right = total = 0
    with torch.no_grad():
        for images, labels in loader:
            out = engine(images.to(local_device).bfloat16())
            right += (out.argmax(1) == labels.to(local_device)).sum().item()
            total += labels.size(0)
    if torch.distributed.get_rank() == 0:
        print(f"Accuracy on the test images: {100 * right / total:.0f} %")


def main(args):
    deepspeed.init_distributed()
    get_accelerator().set_device(args.local_rank)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])

    if torch.distributed.get_rank() != 0:
        # might be downloading, let rank 0 do it first
        torch.distributed.barrier()
    trainset = torchvision.datasets.CIFAR10(root="./data", train=True, download=True, transform=transform)
    testset = torchvision.datasets.CIFAR10(root="./data", train=False, download=True, transform=transform)
    if torch.distributed.get_rank() == 0:
        # downloaded, let the others go on
        torch.distributed.barrier()

    with open(args.settings) as f:
        settings = json.load(f)
    net = Net(args)
    engine, _, trainloader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=[p for p in net.parameters() if p.requires_grad],
        training_data=trainset, config=settings)
    device = get_accelerator().device_name(engine.local_rank)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        running = 0.0
        for i, (inputs, labels) in enumerate(trainloader):
            inputs, labels = inputs.to(device).bfloat16(), labels.to(device)
            loss = criterion(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
            running += loss.item()
            if engine.global_rank == 0 and i % args.log_interval == args.log_interval - 1:
                print(f"[{epoch}, {i + 1}] loss: {running / args.log_interval:.3f}")
                running = 0.0
    test(engine, testset, device)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(add_argument())
