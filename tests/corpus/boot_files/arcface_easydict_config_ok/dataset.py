from torch import distributed
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from utils.utils_distributed_sampler import DistributedSampler, setup_seed, worker_init_fn


def get_dataloader(root_dir, local_rank, batch_size, seed=2048, num_workers=2):
    transform = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                    transforms.Normalize(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5])])
    train_set = ImageFolder(root_dir, transform)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    setup_seed(seed, cuda_deterministic=False)
    train_sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
    return DataLoader(dataset=train_set, batch_size=batch_size, num_workers=num_workers, sampler=train_sampler,
                      pin_memory=True, drop_last=True, worker_init_fn=worker_init_fn)
