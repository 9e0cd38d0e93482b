"""The TinyStories data set, pretokenised into shards."""
import glob
import os
import random

import numpy as np
import torch
import torch.distributed as dist

DATA_CACHE_DIR = os.environ.get("TINYSTORIES_DIR", "/data/tinystories")


def load_vocab():
    with open("data/vocab.txt", encoding="utf-8") as f:
        return [line.rstrip("\n") for line in f]


class PretokDataset(torch.utils.data.IterableDataset):
    """Yields examples for ever; each worker of each rank has a random order of its own."""

    def __init__(self, split, max_seq_len):
        super().__init__()
        self.split = split
        self.max_seq_len = max_seq_len

    def __iter__(self):
        worker_info = torch.utils.data.get_worker_info()
        worker_id = worker_info.id if worker_info else 0
        rank = dist.get_rank() if dist.is_initialized() else 0
        rng = random.Random(42 + worker_id + 1337 * rank)
        shards = sorted(glob.glob(os.path.join(DATA_CACHE_DIR, "*.bin")))
        shards = shards[1:] if self.split == "train" else shards[:1]
        assert len(shards) > 0, f"No bin files found in {DATA_CACHE_DIR}"
        while True:
            rng.shuffle(shards)
            for shard in shards:
                m = np.memmap(shard, dtype=np.uint16, mode="r")
                ixs = list(range(len(m) // self.max_seq_len - 1))
                rng.shuffle(ixs)
                for ix in ixs:
                    start = ix * self.max_seq_len
                    chunk = torch.from_numpy(m[start:start + self.max_seq_len + 1].astype(np.int64))
                    yield chunk[:-1], chunk[1:]


class Task:
    @staticmethod
    def iter_batches(batch_size, device, num_workers=0, **dataset_kwargs):
        ds = PretokDataset(**dataset_kwargs)
        dl = torch.utils.data.DataLoader(ds, batch_size=batch_size, pin_memory=True, num_workers=num_workers)
        for x, y in dl:
            yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)
