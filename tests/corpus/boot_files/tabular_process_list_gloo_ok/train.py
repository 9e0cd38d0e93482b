#!/usr/bin/env python
import argparse
import logging
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import Process
from torch.utils.data import DataLoader

from tabular.features import ClickLogs, load_frame
from tabular.parallel import PartitionSampler, sync_model

log = logging.getLogger("tabular")


@dataclass
class Config:
    hidden: tuple = (256, 128)
    dropout: float = 0.1
    betas: tuple = field(default=(0.9, 0.999))


def cli():
    p = argparse.ArgumentParser(description="CTR model on CPU nodes")
    p.add_argument("--csv", required=True)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=4096)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--num-procs", type=int, default=4, help="processes on this node")
    p.add_argument("--normalize", type=lambda s: s.lower() in ("1", "true", "yes"), default=True)
    p.add_argument("--model-out", default="ctr.pt")
    p.add_argument("--init_method", default="tcp://127.0.0.1:29400", metavar="URL")
    p.add_argument("--world_size", type=int, default=1, metavar="NODES")
    p.add_argument("--rank", type=int, default=0, metavar="NODE")
    args, extra = p.parse_known_args()
    if extra:
        log.warning("not used: %s", extra)
    return args


def build(n_features, cfg):
    layers, last = [], n_features
    for width in cfg.hidden:
        layers += [nn.Linear(last, width), nn.ReLU(), nn.Dropout(cfg.dropout)]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, 1))


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(order, dtype=torch.double)
    ranks[order] = torch.arange(1, len(order) + 1, dtype=torch.double)
    pos = labels.sum().double()
    return ((ranks[labels.bool()].sum() - pos * (pos + 1) / 2) / (pos * (len(labels) - pos))).item()


def train(local, args):
    rank = args.rank * args.num_procs + local
    os.environ["RANK"], os.environ["LOCAL_RANK"] = str(rank), str(local)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.num_procs))
    dist.init_process_group("gloo", init_method=args.init_method, rank=rank, world_size=args.world_size * args.num_procs)
    logging.basicConfig(level=logging.INFO if int(os.environ["RANK"]) == 0 else logging.ERROR)
    torch.manual_seed(0)

    frame = load_frame(args.csv, normalize=args.normalize)
    train_set, test_set = ClickLogs(frame, "train"), ClickLogs(frame, "test")
    sampler = PartitionSampler(len(train_set), dist.get_rank(), dist.get_world_size())
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    cfg = Config()
    model = build(train_set.width, cfg)
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=args.lr, betas=cfg.betas)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(ddp(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
        sync_model(model)
        if rank == 0:
            model.eval()
            with torch.no_grad():
                score = auc(model(test_set.x).squeeze(1), test_set.y)
            log.info("epoch %d auc %.4f", epoch, score)
            torch.save(model.state_dict(), args.model_out)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    args = cli()
    torch.multiprocessing.set_start_method("spawn")
    processes = []
    for local in range(args.num_procs):
        p = Process(target=train, args=(local, args))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
    raise SystemExit(max(abs(p.exitcode) for p in processes))
