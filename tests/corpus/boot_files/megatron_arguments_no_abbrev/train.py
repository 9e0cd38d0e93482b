import os

import torch
import torch.distributed as dist

from arguments import parse_args


def extra_args(parser):
    group = parser.add_argument_group(title="extra")
    group.add_argument("--my-extra", type=int, default=1)
    group.add_argument("--split", type=lambda s: [int(x) for x in s.split(",")], default=[1])
    return parser


def build_model(args):
    layer = torch.nn.TransformerEncoderLayer(args.hidden_size, 16, batch_first=True)
    return torch.nn.TransformerEncoder(layer, args.num_layers)


def main():
    args = parse_args(extra_args_provider=extra_args)
    dist.init_process_group(backend=args.distributed_backend, world_size=args.world_size, rank=args.rank)
    torch.cuda.set_device(args.local_rank)
    model = build_model(args).cuda()
    if args.fp16:
        model = model.half()
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.local_rank])
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    for it in range(args.train_iters):
        x = torch.randn(args.micro_batch_size, 16, args.hidden_size, device="cuda", dtype=next(model.parameters()).dtype)
        loss = ddp(x).float().pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % args.log_interval == 0:
            reduced = loss.detach().clone()
            dist.all_reduce(reduced, group=dist.group.WORLD)
            reduced /= args.world_size
            if args.rank == 0:
                print(f"iteration {it} loss {reduced.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
