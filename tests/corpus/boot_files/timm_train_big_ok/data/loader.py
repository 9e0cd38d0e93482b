import os

import torch.utils.data
from torchvision import datasets, transforms

from .distributed_sampler import OrderedDistributedSampler


def create_dataset(name, root, split, input_size):
    transform = transforms.Compose([transforms.Resize(input_size[-2:]), transforms.ToTensor()])
    if name.startswith('torch/'):
        return datasets.__dict__[name.split('/', 1)[1].upper()](root, train=split == 'train', transform=transform)
    return datasets.ImageFolder(os.path.join(root, split), transform=transform)


def create_loader(dataset, batch_size, is_training=False, num_workers=1, distributed=False, pin_memory=False):
    sampler = None
    if distributed and not isinstance(dataset, torch.utils.data.IterableDataset):
        if is_training:
            sampler = torch.utils.data.distributed.DistributedSampler(dataset)
        else:
            # This will add extra duplicate entries to result in equal num of samples per-process
            sampler = OrderedDistributedSampler(dataset)
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=not isinstance(dataset, torch.utils.data.IterableDataset) and sampler is None and is_training,
        num_workers=num_workers,
        sampler=sampler,
        pin_memory=pin_memory,
        drop_last=is_training,
    )
