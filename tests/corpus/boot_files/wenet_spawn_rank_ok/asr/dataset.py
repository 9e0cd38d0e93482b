import random

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


class DistributedSampler:
    """Tells which of the list's lines are this process's and this worker's."""

    def __init__(self, shuffle=True, partition=True):
        self.epoch, self.shuffle, self.partition = -1, shuffle, partition
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        else:
            self.rank, self.world_size = 0, 1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def sample(self, data):
        info = torch.utils.data.get_worker_info()
        worker_id, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        data = list(range(len(data)))
        if self.partition:
            if self.shuffle:
                random.Random(self.epoch).shuffle(data)
            data = data[self.rank::self.world_size]
        return data[worker_id::num_workers]


class Dataset(IterableDataset):
    def __init__(self, list_file, conf, partition=True):
        with open(list_file) as fin:
            self.lists = [line.strip() for line in fin]
        self.batch = conf['batch']
        self.sampler = DistributedSampler(conf.get('shuffle', True), partition)
        self.rank, self.world_size = self.sampler.rank, self.sampler.world_size

    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)

    def __iter__(self):
        batch = []
        for index in self.sampler.sample(self.lists):
            path, label = self.lists[index].rsplit('|', 1)
            batch.append((torch.load(path), int(label)))
            if len(batch) == self.batch:
                feats, labels = zip(*batch)
                yield torch.stack(feats), torch.tensor(labels)
                batch = []
