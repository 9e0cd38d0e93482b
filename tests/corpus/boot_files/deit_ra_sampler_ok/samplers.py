import math

import torch
import torch.distributed as dist


class RASampler(torch.utils.data.Sampler):
    """Restricts data loading to a subset, with repeated augmentation: different augmented versions of a sample are
    visible to different processes."""

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, num_repeats: int = 3):
        if num_replicas is None:
            num_replicas = dist.get_world_size()
        if rank is None:
            rank = dist.get_rank()
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.num_repeats = num_repeats
        self.epoch = 0
        self.num_samples = int(math.ceil(len(dataset) * num_repeats / num_replicas))
        self.total_size = self.num_samples * num_replicas
        self.num_selected_samples = int(math.floor(len(dataset) // 256 * 256 / num_replicas))
        self.shuffle = shuffle

    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.epoch)
        order = torch.randperm(len(self.dataset), generator=g) if self.shuffle else torch.arange(len(self.dataset))
        indices = torch.repeat_interleave(order, repeats=self.num_repeats).tolist()
        indices += indices[:self.total_size - len(indices)]
        indices = indices[self.rank:self.total_size:self.num_replicas]
        return iter(indices[:self.num_selected_samples])

    def __len__(self):
        return self.num_selected_samples

    def set_epoch(self, epoch):
        self.epoch = epoch
