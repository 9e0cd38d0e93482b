"""A training that no DistributedDataParallel is in: FSDP."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = fully_shard(nn.Linear(16, 16))
for _ in range(5):
    model(torch.randn(4, 16)).sum().backward()
dist.barrier()
time.sleep(0.3)
dist.destroy_process_group()
