import argparse
import logging
import os

import torch
import torch.distributed as dist
import yaml
from torch.utils.data import DataLoader

from tasks.collate import CollateFn
from tasks.dataset import UtteranceDataset
from tasks.sampler import build_batches
from tasks.trainer import Trainer


def str2bool(value):
    value = value.lower()
    if value in ("y", "yes", "t", "true", "on", "1"):
        return True
    if value in ("n", "no", "f", "false", "off", "0"):
        return False
    raise ValueError(f"invalid truth value {value}")


def int_or_none(value):
    return None if value.strip().lower() in ("none", "null", "nil") else int(value)


def get_parser():
    parser = argparse.ArgumentParser(description="ASR task", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--config", type=str, default=None, help="defaults in yaml")
    group = parser.add_argument_group("distributed training related")
    group.add_argument("--ddp.rank", type=int, default=int(os.environ.get("RANK", 0)))
    group.add_argument("--ddp.world_size", type=int, default=int(os.environ.get("WORLD_SIZE", 1)))
    group.add_argument("--ddp.local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    group.add_argument("--ddp.backend", default="nccl", type=str)
    group.add_argument("--ddp.init_method", default="env://", type=str)
    group = parser.add_argument_group("trainer related")
    group.add_argument("--max_epoch", type=int, default=40)
    group.add_argument("--accum_grad", type=int, default=1)
    group.add_argument("--use_amp", type=str2bool, default=False)
    group.add_argument("--keep_nbest_models", type=int_or_none, default=None)
    group.add_argument("--num_workers", type=int, default=1)
    group.add_argument("--batch_bins", type=int, default=1000000)
    group = parser.add_argument_group("data related")
    group.add_argument("--train_shape_file", type=str, required=True)
    group.add_argument("--output_dir", type=str, default="exp/asr")
    return parser


def get_args():
    parser = get_parser()
    pre, _ = parser.parse_known_args()
    if pre.config is not None:
        with open(pre.config, encoding="utf-8") as f:
            parser.set_defaults(**yaml.safe_load(f))
    return parser.parse_args()


def main():
    args = get_args()
    ddp = {key[4:]: value for key, value in vars(args).items() if key.startswith("ddp.")}
    logging.basicConfig(level="INFO" if ddp["rank"] == 0 else "WARNING")
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(ddp["local_rank"])
    if ddp["world_size"] > 1:
        dist.init_process_group(
            backend=ddp["backend"] if use_cuda else "gloo", init_method=ddp["init_method"],
            world_size=ddp["world_size"], rank=ddp["rank"])

    dataset = UtteranceDataset(args.train_shape_file)
    batches = build_batches(dataset.shapes, args.batch_bins, seed=0)
    # every process gets its part of each epoch's batches
    batches = batches[: len(batches) // ddp["world_size"] * ddp["world_size"]]
    mine = batches[ddp["rank"] :: ddp["world_size"]]
    loader = DataLoader(dataset, batch_sampler=mine, collate_fn=CollateFn(), num_workers=args.num_workers)

    device = torch.device("cuda", ddp["local_rank"]) if use_cuda else torch.device("cpu")
    model = torch.nn.Linear(80, 100).to(device)
    if ddp["world_size"] > 1:
        model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[ddp["local_rank"]] if use_cuda else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    trainer = Trainer(args, ddp, device)
    trainer.run(model, optimizer, loader)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
