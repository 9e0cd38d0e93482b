import argparse
import os

import torch
import torch.distributed as dist

DEFAULTS = {
    "lr": 0.01,
    "momentum": 0.9,
    "epochs": 5,
    "tag": "debug",
    "nesterov": False,
}


def get_args():
    p = argparse.ArgumentParser()
    for key, value in DEFAULTS.items():
        if isinstance(value, bool):
            p.add_argument(f"--{key}", action="store_true", default=value)
        else:
            p.add_argument("--" + key, type=type(value), default=value)
    return p.parse_args()


def main():
    cfg = vars(get_args())
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3).cuda(), device_ids=[local])
    opt = torch.optim.SGD(net.parameters(), lr=cfg["lr"], momentum=cfg["momentum"], nesterov=cfg["nesterov"])
    for _ in range(cfg["epochs"]):
        loss = net(torch.randn(4, 3).cuda()).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"tag": cfg["tag"], "loss": loss.item()})
    if dist.get_rank() == 0:
        print(gathered)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
