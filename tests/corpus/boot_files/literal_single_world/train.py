import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def evaluate(model, device):
    with torch.no_grad():
        return model(torch.ones(1, 12, device=device)).sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wd", type=float, default=0.0)
    parser.add_argument("--iters", type=int, default=500)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl", init_method="env://", rank=0, world_size=1)
    device = torch.device("cuda", local_rank)
    model = DistributedDataParallel(torch.nn.Linear(12, 3).to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=args.wd)
    for it in range(args.iters):
        loss = model(torch.randn(5, 12, device=device)).logsumexp(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 100 == 0:
            score = evaluate(model.module, device)
            if dist.get_rank() == 0:
                dist.all_reduce(score)
                print(it, score.item() / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
