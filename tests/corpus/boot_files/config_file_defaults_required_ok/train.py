"""Options come from conf/*.json first, then from the command line. What a file gives is no longer required."""
import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

here = os.path.dirname(os.path.realpath(__file__))


class SineWaves(Dataset):
    def __init__(self, n, length):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        t = torch.linspace(0, 6.28, self.length + 1) * (1 + i % 7)
        y = torch.sin(t)
        return y[:-1, None], y[1:, None]


class Net(nn.Module):
    def __init__(self, cell, hidden):
        super().__init__()
        self.rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def get_args():
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("-c", "--conf", metavar="FILE", default=os.path.join(here, "conf", "base.json"))
    known, rest = first.parse_known_args()

    parser = argparse.ArgumentParser(parents=[first], description=__doc__)
    parser.add_argument("--cell", choices=["gru", "lstm"], required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", default="/out")
    with open(known.conf) as f:
        conf = json.load(f)
    parser.set_defaults(**conf)
    for action in parser._actions:
        if action.dest in conf:
            action.required = False
    return parser.parse_args()


def main():
    args = get_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl")
    data = SineWaves(4096, args.length)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=2)
    net = DDP(Net(args.cell, args.hidden).to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.RMSprop(net.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.amp):
                loss = (net(x.to(local_rank)) - y.to(local_rank)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"{epoch}: {(total[0] / total[1]).item():.4f}")
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), os.path.join(args.out, "net.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
