import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def add_common(parser):
    group = parser.add_argument_group("data")
    group.add_argument("--data", required=True)
    group.add_argument("--workers", type=int, default=4)


def add_train(commands, parent):
    parser = commands.add_parser("train", aliases=["fit"], parents=[parent])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.set_defaults(run=train)
    return parser


def add_export(commands, parent):
    parser = commands.add_parser("export", parents=[parent])
    parser.add_argument("checkpoint")
    parser.add_argument("--opset", type=int, default=17)
    parser.set_defaults(run=export)
    return parser


def build_parser():
    parser = argparse.ArgumentParser(description="train and export")
    parser.add_argument("--verbose", action="store_true")
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--seed", type=int, default=0)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (add_train(commands, parent), add_export(commands, parent)):
        add_common(command)
    return parser


def train(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(args.seed)
    data = TensorDataset(torch.load(os.path.join(args.data, "x.pt")))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 32, sampler=sampler, num_workers=args.workers)
    model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[local_rank])
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    optimizer = kinds[args.optimizer](model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = model(x.cuda()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if args.verbose and dist.get_rank() == 0:
            print(f"epoch {epoch}: {loss.item():.4f}")
    dist.destroy_process_group()


def export(args):
    state = torch.load(args.checkpoint, map_location="cpu")
    print(len(state), "tensors, opset", args.opset)


def main():
    args = build_parser().parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
