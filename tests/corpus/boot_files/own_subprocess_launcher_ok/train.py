"""One process per node is started by the platform; it starts one child for each GPU and watches them."""
import argparse
import os
import signal
import subprocess
import sys
import time
from urllib.parse import urlparse


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method", default="tcp://127.0.0.1:6060")
    parser.add_argument("--world_size", type=int, default=1, help="nodes")
    parser.add_argument("--rank", type=int, default=0, help="this node")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    return parser.parse_args()


def supervise(args):
    """Start a child for each device, end all of them if one fails."""
    import torch

    count = torch.cuda.device_count()
    url = urlparse(args.init_method)
    children = []
    for local in range(count):
        env = dict(os.environ)
        env.update(
            MASTER_ADDR=url.hostname,
            MASTER_PORT=str(url.port),
            RANK=str(args.rank * count + local),
            LOCAL_RANK=str(local),
            WORLD_SIZE=str(args.world_size * count),
        )
        children.append(subprocess.Popen([sys.executable, "-u", os.path.abspath(__file__), *sys.argv[1:]], env=env))

    def forward(signum, frame):
        for child in children:
            child.send_signal(signum)

    signal.signal(signal.SIGTERM, forward)
    code = 0
    while any(child.poll() is None for child in children):
        if any(child.poll() not in (None, 0) for child in children):
            forward(signal.SIGTERM, None)
        time.sleep(1)
    for child in children:
        code = code or child.returncode
    return code


def train(args):
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", init_method="env://")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(4096, 16), torch.randn(4096, 1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    net = torch.nn.Sequential(torch.nn.Linear(16, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, 1)).cuda()
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
    opt = torch.optim.AdamW(net.parameters())
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(net(x.cuda()), y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(epoch, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    args = parse()
    if "LOCAL_RANK" in os.environ:
        train(args)
    else:
        sys.exit(supervise(args))
