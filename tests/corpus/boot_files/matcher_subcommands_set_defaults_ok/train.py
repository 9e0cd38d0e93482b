"""train.py pretrain|finetune|export: local feature matching"""
import argparse
import os
import pathlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from matching import Matcher, Pairs, SyntheticHomographies


def add_common(p):
    g = p.add_argument_group("optimisation")
    g.add_argument("--epochs", type=int, default=30)
    g.add_argument("--bs", type=int, default=16, help="per process")
    g.add_argument("--lr", type=float, default=1e-3)
    g.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    g.add_argument("--grad-clip", type=float, default=None)
    return p


def get_parser():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs"))
    parser.add_argument("--seed", type=int, default=1)
    sub = parser.add_subparsers(dest="command", required=True)

    pre = add_common(sub.add_parser("pretrain", help="on synthetic homographies"))
    pre.add_argument("--images", type=str, required=True)
    pre.add_argument("--max-angle", type=float, default=30.0)
    pre.set_defaults(func=pretrain)

    fine = add_common(sub.add_parser("finetune", aliases=["ft"], help="on pairs with known pose"))
    fine.add_argument("pairs", type=str)
    fine.add_argument("--weights", type=str, required=True)
    fine.add_argument("--freeze-backbone", action="store_true")
    fine.set_defaults(func=finetune)

    exp = sub.add_parser("export")
    exp.add_argument("--weights", type=str, required=True)
    exp.add_argument("--opset", type=int, default=17)
    exp.set_defaults(func=export)
    return parser


class Context:
    def __init__(self):
        self.distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if self.distributed:
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        self.rank = dist.get_rank() if self.distributed else 0
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank)
            self.device = torch.device("cuda", self.local_rank)
        else:
            self.device = torch.device("cpu")

    def wrap(self, model):
        model = model.to(self.device)
        if not self.distributed:
            return model
        ids = [self.local_rank] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)

    def loader(self, dataset, bs):
        sampler = DistributedSampler(dataset, shuffle=True) if self.distributed else None
        return DataLoader(dataset, bs, sampler=sampler, shuffle=sampler is None, num_workers=4, drop_last=True)

    def mean(self, x):
        if self.distributed:
            dist.all_reduce(x)
            x /= dist.get_world_size()
        return x.item()

    def close(self):
        if self.distributed:
            dist.destroy_process_group()


def fit(ctx, model, dataset, args):
    loader = ctx.loader(dataset, args.bs)
    params = [p for p in model.parameters() if p.requires_grad]
    net = ctx.wrap(model)
    optimizer = torch.optim.Adam(params, lr=args.lr)
    if args.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    args.workdir.mkdir(parents=True, exist_ok=True)
    for epoch in range(args.epochs):
        if ctx.distributed:
            loader.sampler.set_epoch(epoch)
        total = torch.zeros((), device=ctx.device)
        for a, b, target in loader:
            with torch.autocast(ctx.device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                scores = net(a.to(ctx.device), b.to(ctx.device))
            loss = nn.functional.cross_entropy(scores.float(), target.to(ctx.device))
            optimizer.zero_grad()
            loss.backward()
            if args.grad_clip:
                nn.utils.clip_grad_norm_(params, args.grad_clip)
            optimizer.step()
            total += loss.detach()
        mean = ctx.mean(total / len(loader))
        if ctx.rank == 0:
            print(f"epoch {epoch}: {mean:.4f}", flush=True)
            torch.save(getattr(net, "module", net).state_dict(), args.workdir / "last.pt")


def pretrain(args):
    ctx = Context()
    torch.manual_seed(args.seed)
    fit(ctx, Matcher(), SyntheticHomographies(args.images, args.max_angle), args)
    ctx.close()


def finetune(args):
    ctx = Context()
    torch.manual_seed(args.seed)
    model = Matcher()
    model.load_state_dict(torch.load(args.weights, map_location="cpu"))
    if args.freeze_backbone:
        model.backbone.requires_grad_(False)
    fit(ctx, model, Pairs(args.pairs), args)
    ctx.close()


def export(args):
    model = Matcher().eval()
    model.load_state_dict(torch.load(args.weights, map_location="cpu"))
    args.workdir.mkdir(parents=True, exist_ok=True)
    x = torch.zeros(1, 1, 64, 64)
    torch.onnx.export(model, (x, x), str(args.workdir / "matcher.onnx"), opset_version=args.opset)


if __name__ == "__main__":
    ns = get_parser().parse_args()
    ns.func(ns)
