import argparse
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def build_parser():
    parser = argparse.ArgumentParser("seq-tool")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-format", choices=("json", "none", "simple", "tqdm"), default="simple")
    sub = parser.add_subparsers(dest="command", required=True)

    train = sub.add_parser("train", help="train a model")
    train.add_argument("--arch", choices=["transformer", "lstm", "fconv"], required=True)
    train.add_argument("--max-epoch", type=int, default=10)
    train.add_argument("--clip-norm", type=float, default=0.0)
    train.set_defaults(func=do_train)

    gen = sub.add_parser("generate", help="translate")
    gen.add_argument("--beam", type=int, default=5)
    gen.add_argument("--path", required=True)
    gen.set_defaults(func=do_generate)
    return parser


def log(args, **kw):
    if args.log_format == "json":
        print(json.dumps(kw))
    elif args.log_format == "simple":
        print(" | ".join(f"{k} {v}" for k, v in kw.items()))


def do_generate(args):
    torch.load(args.path, map_location="cuda:0")
    raise NotImplementedError


def do_train(args):
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    torch.manual_seed(args.seed)
    model = torch.nn.Transformer(64, 2, 1, 1).cuda() if args.arch == "transformer" else torch.nn.LSTM(64, 64).cuda()
    model = DistributedDataParallel(model, device_ids=[local])
    optim = torch.optim.Adam(model.parameters())
    for epoch in range(args.max_epoch):
        src = torch.randn(10, 8, 64, device="cuda")
        out = model(src, src) if args.arch == "transformer" else model(src)[0]
        loss = out.pow(2).mean()
        optim.zero_grad()
        loss.backward()
        if args.clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_norm)
        optim.step()
        agg = loss.detach().clone()
        dist.all_reduce(agg)
        if dist.get_rank() == 0:
            log(args, epoch=epoch, loss=agg.item() / dist.get_world_size())
    dist.destroy_process_group()


def main(argv=None):
    args = build_parser().parse_args(argv)
    return args.func(args)


if __name__ == "__main__":
    sys.exit(main())
