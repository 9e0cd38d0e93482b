from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))

from engine_core import fit  # noqa: E402
from parts.head import Head  # noqa: E402

try:
    from parts.fused import FusedAdam as Adam
except ImportError:
    from torch.optim import Adam

if TYPE_CHECKING:
    from parts.types import Batch


def collate(batch: Batch):
    return torch.stack(batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--plugin", default=None)
    args = parser.parse_args()
    if args.plugin:
        importlib.import_module(args.plugin)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    try:
        model = torch.nn.parallel.DistributedDataParallel(Head().cuda(), device_ids=[local])
        fit(model, Adam(model.parameters(), lr=args.lr))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
