import argparse
import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ShardedClips(IterableDataset):
    """Shards of clips: every process and every worker reads its own files, in an order of its own."""

    def __init__(self, pattern, count, frames, seed=0):
        self.urls = [pattern.format(i) for i in range(count)]
        self.frames, self.seed, self.epoch = frames, seed, 0

    def __iter__(self):
        rank = dist.get_rank() if dist.is_initialized() else 0
        world = dist.get_world_size() if dist.is_initialized() else 1
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        urls = list(self.urls)
        random.Random(self.seed + self.epoch).shuffle(urls)
        for url in urls[rank * workers + worker::world * workers]:
            with np.load(url) as shard:
                for clip, label in zip(shard["clips"], shard["labels"]):
                    yield torch.from_numpy(clip[:, : self.frames]).float(), int(label)


class R3D(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv3d(3, 32, 3, stride=2)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3, 4)))


def parse(argv):
    p = argparse.ArgumentParser(allow_abbrev=False)
    p.add_argument("--shards", default="/data/kinetics/train-{:05d}.npz")
    p.add_argument("--num-shards", type=int, default=1024)
    p.add_argument("--frames-per-clip", type=int, default=16)
    p.add_argument("--classes", type=int, default=400)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--learning-rate", type=float, default=0.01)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--output", default="/out")
    known, rest = p.parse_known_args(argv)
    if rest and int(os.environ.get("RANK", 0)) == 0:
        print("not for this script:", rest, file=sys.stderr)
    return known


def main(argv=None):
    opt = parse(argv)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    data = ShardedClips(opt.shards, opt.num_shards, opt.frames_per_clip)
    loader = DataLoader(data, batch_size=opt.batch_size, num_workers=opt.workers)
    model = DistributedDataParallel(R3D(opt.classes).cuda(), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=opt.learning_rate, momentum=0.9)
    for epoch in range(opt.epochs):
        data.epoch = epoch
        # shards have unequal numbers of clips
        with Join([model]):
            for clip, label in loader:
                loss = nn.functional.cross_entropy(model(clip.cuda(non_blocking=True)), label.cuda())
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, os.path.join(opt.output, "last.pt"))
            print("epoch", epoch, "done")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
