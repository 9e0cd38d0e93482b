import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from zoo import MODELS

p = argparse.ArgumentParser()
p.add_argument("--local-rank", type=int, default=0)
p.add_argument("--arch", choices=MODELS.keys(), default="small")
p.add_argument("--wd", type=float, default=1e-4)
flags = p.parse_args()

torch.cuda.set_device(flags.local_rank)
dist.init_process_group("nccl")
net = DDP(MODELS[flags.arch]().cuda(), device_ids=[flags.local_rank], output_device=flags.local_rank)
opt = torch.optim.AdamW(net.parameters(), weight_decay=flags.wd)
scaler = torch.cuda.amp.GradScaler()

for step in range(1000):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(torch.randn(32, 10, device="cuda")).pow(2).mean()
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 100 == 0:
        t = loss.detach()
        dist.reduce(t, 0)
        if dist.get_rank() == 0:
            print(step, (t / dist.get_world_size()).item())
