import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import DistributedSampler as _DistributedSampler

from pcdet.utils import common_utils


class DistributedSampler(_DistributedSampler):
    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True):
        super().__init__(dataset, num_replicas=num_replicas, rank=rank)
        self.shuffle = shuffle

    def __iter__(self):
        if self.shuffle:
            g = torch.Generator()
            g.manual_seed(self.epoch)
            indices = torch.randperm(len(self.dataset), generator=g).tolist()
        else:
            indices = torch.arange(len(self.dataset)).tolist()
        indices += indices[:(self.total_size - len(indices))]
        return iter(indices[self.rank:self.total_size:self.num_replicas])


class PointDataset(Dataset):
    def __init__(self, cfg):
        self.frames, self.points = cfg.NUM_FRAMES, cfg.POINTS

    def __len__(self):
        return self.frames

    def __getitem__(self, index):
        return {'points': torch.randn(self.points, 4), 'label': index % 3}


def build_dataloader(dataset_cfg, batch_size, dist, workers=4, training=True):
    dataset = PointDataset(dataset_cfg)
    if dist:
        if training:
            sampler = DistributedSampler(dataset)
        else:
            rank, world_size = common_utils.get_dist_info()
            sampler = DistributedSampler(dataset, world_size, rank, shuffle=False)
    else:
        sampler = None
    dataloader = DataLoader(
        dataset, batch_size=batch_size, pin_memory=True, num_workers=workers,
        shuffle=(sampler is None) and training, drop_last=False, sampler=sampler, timeout=0)
    return dataset, dataloader, sampler
