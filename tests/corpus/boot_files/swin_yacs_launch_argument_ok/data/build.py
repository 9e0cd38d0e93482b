import os

import torch
import torch.distributed as dist
from torchvision import datasets, transforms

from .samplers import SubsetRandomSampler


def build_loader(config):
    dataset_train = build_dataset(is_train=True, config=config)
    print(f"rank {dist.get_rank()} successfully build train dataset")
    dataset_val = build_dataset(is_train=False, config=config)

    num_tasks = dist.get_world_size()
    global_rank = dist.get_rank()
    if config.DATA.CACHE_MODE == 'part':
        indices = range(global_rank, len(dataset_train) // num_tasks * num_tasks, num_tasks)
        sampler_train = SubsetRandomSampler(list(indices))
    else:
        sampler_train = torch.utils.data.DistributedSampler(
            dataset_train, num_replicas=num_tasks, rank=global_rank, shuffle=True)
    indices = range(global_rank, len(dataset_val) // num_tasks * num_tasks, num_tasks)
    sampler_val = SubsetRandomSampler(list(indices))

    data_loader_train = torch.utils.data.DataLoader(
        dataset_train, sampler=sampler_train, batch_size=config.DATA.BATCH_SIZE,
        num_workers=config.DATA.NUM_WORKERS, pin_memory=True, drop_last=True)
    data_loader_val = torch.utils.data.DataLoader(
        dataset_val, sampler=sampler_val, batch_size=config.DATA.BATCH_SIZE, shuffle=False,
        num_workers=config.DATA.NUM_WORKERS, pin_memory=True, drop_last=False)
    return dataset_train, data_loader_train, data_loader_val


def build_dataset(is_train, config):
    root = os.path.join(config.DATA.DATA_PATH, 'train' if is_train else 'val')
    transform = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])
    return datasets.ImageFolder(root, transform=transform)
