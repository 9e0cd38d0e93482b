import torch
import torch.distributed as dist
from absl import flags
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

flags.DEFINE_integer("shuffle_buffer", 1000, "examples kept to shuffle")
flags.DEFINE_integer("examples_per_epoch", 100_000, "over all processes")


class Synthetic(IterableDataset):
    """Every process and each of its workers makes its own part."""

    def __init__(self, total, seed=0):
        self.total, self.seed, self.epoch = total, seed, 0

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        first = dist.get_rank() * workers + worker if dist.is_initialized() else worker
        step = workers * (dist.get_world_size() if dist.is_initialized() else 1)
        for index in range(first, self.total // step * step, step):
            generator = torch.Generator().manual_seed(self.seed + self.epoch * self.total + index)
            x = torch.randn(32, generator=generator)
            yield x, x.sum().sign()


def make_loader(batch_size):
    dataset = Synthetic(flags.FLAGS.examples_per_epoch)
    return dataset, DataLoader(dataset, batch_size=batch_size, drop_last=True)
