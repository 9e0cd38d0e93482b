import torch
from torch.utils.data.distributed import DistributedSampler
from torch.utils.data.sampler import RandomSampler


class Clips(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(3, 8, 56, 56), index % 400


def construct_loader(cfg, split):
    dataset = Clips(cfg["DATA.NUM_VIDEOS"])
    batch_size = int(cfg["TRAIN.BATCH_SIZE"] / max(1, cfg["NUM_GPUS"]))
    shuffle, drop_last = (True, True) if split == "train" else (False, False)
    # Create a sampler for multi-process training
    sampler = create_sampler(dataset, shuffle, cfg)
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=(False if sampler else shuffle),
        sampler=sampler,
        num_workers=4,
        pin_memory=True,
        drop_last=drop_last,
    )


def create_sampler(dataset, shuffle, cfg):
    return DistributedSampler(dataset) if cfg["NUM_GPUS"] > 1 else None


def shuffle_dataset(loader, cur_epoch):
    """Shuffles the data."""
    sampler = loader.sampler
    assert isinstance(sampler, (RandomSampler, DistributedSampler)), "Sampler type '{}' not supported".format(type(sampler))
    # RandomSampler handles shuffling automatically
    if isinstance(sampler, DistributedSampler):
        # DistributedSampler shuffles data based on epoch
        sampler.set_epoch(cur_epoch)
