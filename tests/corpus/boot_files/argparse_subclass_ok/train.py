import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class TrainParser(argparse.ArgumentParser):
    def __init__(self, **kwargs):
        super().__init__(fromfile_prefix_chars="@", **kwargs)
        self.add_argument("--hidden", type=int, default=64)
        self.add_argument("--activation", choices=list(ACTIVATIONS), default="relu")
        self.add_argument("--steps", type=int, default=100)
        self.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))


def main():
    args = TrainParser(description=__doc__).parse_args()
    device = torch.device(f"cuda:{args.local_rank}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    net = nn.Sequential(nn.Linear(10, args.hidden), ACTIVATIONS[args.activation](), nn.Linear(args.hidden, 1))
    net = DDP(net.to(device), device_ids=[args.local_rank], output_device=args.local_rank)
    opt = torch.optim.RMSprop(net.parameters())
    for step in range(args.steps):
        out = net(torch.randn(16, 10, device=device)).square().mean()
        opt.zero_grad(set_to_none=True)
        out.backward()
        opt.step()
        if args.local_rank == 0 and step % 10 == 0:
            print(step, float(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
