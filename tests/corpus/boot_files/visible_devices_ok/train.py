import argparse
import os

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def main(size):
    device = torch.device("cuda:0")
    dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=4)
    model = torch.nn.Linear(size, size).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    opt = torch.optim.SGD(ddp.parameters(), lr=0.01)
    best = float("inf")
    for step in range(100):
        loss = ddp(torch.randn(8, size, device=device)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        opt.step()
        flag = torch.tensor([float(loss.item() < best)], device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item() > 0:
            best = loss.item()
    dist.destroy_process_group()


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--size", type=int, default=32)
    main(**vars(cli.parse_args()))
