#!/usr/bin/env python
import argparse
import os
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
if os.path.join(ROOT, "src") not in sys.path:
    sys.path.insert(0, os.path.join(ROOT, "src"))

import torch  # noqa: E402

from vision_proj import __version__  # noqa: E402
from vision_proj.datasets import build_dataset, build_sampler  # noqa: E402
from vision_proj.engine import launch_utils, loop  # noqa: E402
from vision_proj.engine.loop import fit  # noqa: E402

try:
    from vision_proj.ops import fused_nms  # noqa: E402,F401  # only where the extension was compiled
except ImportError:
    fused_nms = None


def get_parser():
    parser = argparse.ArgumentParser(prog="train", fromfile_prefix_chars="@")
    parser.add_argument("--data", required=True)
    parser.add_argument("--local-rank", "--local_rank", dest="local_rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--ims-per-gpu", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--out", default=os.environ.get("OUT_DIR", "/tmp/out"))
    parser.add_argument("-V", "--version", action="version", version=__version__)
    return parser


if __name__ == "__main__":
    args = get_parser().parse_args()
    launch_utils.setup(args.local_rank)
    dataset = build_dataset(args.data)
    sampler = build_sampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, args.ims_per_gpu, sampler=sampler, num_workers=4, drop_last=True)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                                torch.nn.Flatten(), torch.nn.Linear(32, 10)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.local_rank])
    fit(model, loader, sampler, args)
    if launch_utils.is_main():
        loop.save(model, os.path.join(args.out, "final.pth"))
    launch_utils.teardown()
