import argparse
import os
from urllib.parse import urlparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def export_env(local, args, per_node):
    url = urlparse(args.init_method)
    os.environ["MASTER_ADDR"] = url.hostname
    os.environ["MASTER_PORT"] = str(url.port)
    os.environ["RANK"] = str(args.rank * per_node + local)
    os.environ["WORLD_SIZE"] = str(args.world_size * per_node)


def worker(local, args, per_node):
    export_env(local, args, per_node)
    train(args.steps)


def train(steps):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", init_method="env://")
    assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[local_rank])
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        loss = net(torch.randn(4, 8, device=local_rank)).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if int(os.environ["RANK"]) == 0:
        print("done", loss.item())
        dist.barrier()
    else:
        dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init_method", required=True)
    parser.add_argument("--world_size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    args, _ = parser.parse_known_args()
    per_node = torch.cuda.device_count()
    mp.spawn(worker, args=(args, per_node), nprocs=per_node)


if __name__ == "__main__":
    main()
