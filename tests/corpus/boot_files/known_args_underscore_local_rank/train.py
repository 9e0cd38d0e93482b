import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ap = argparse.ArgumentParser()
ap.add_argument("--local_rank", type=int, default=0)
ap.add_argument("--width", type=int, default=16)
ap.add_argument("--steps", type=int, default=50)
args, unknown = ap.parse_known_args()
print("ignored:", unknown)

torch.cuda.set_device(args.local_rank)
dist.init_process_group(backend="nccl", init_method="env://")
device = torch.device("cuda", args.local_rank)


class MLP(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = torch.nn.Linear(4, width)
        self.b = torch.nn.Linear(width, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


model = DistributedDataParallel(MLP(args.width).to(device), device_ids=[args.local_rank])
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(args.steps):
    x = torch.randn(64, 4, device=device)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "mlp.pt")
dist.destroy_process_group()
