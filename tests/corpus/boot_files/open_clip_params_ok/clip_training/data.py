import csv
from dataclasses import dataclass
from typing import Optional

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class CsvDataset(Dataset):
    def __init__(self, input_filename, sep):
        with open(input_filename, newline="") as f:
            self.rows = list(csv.reader(f, delimiter=sep))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(hash(self.rows[idx][0]) % 2**31)
        return torch.randn(3, 32, 32, generator=g), torch.randint(0, 1000, (16,), generator=g)


class SyntheticDataset(Dataset):
    def __init__(self, size=100):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, idx):
        return torch.zeros(3, 32, 32), torch.zeros(16, dtype=torch.long)


@dataclass
class DataInfo:
    dataloader: DataLoader
    sampler: Optional[DistributedSampler] = None

    def set_epoch(self, epoch):
        if self.sampler is not None and isinstance(self.sampler, DistributedSampler):
            self.sampler.set_epoch(epoch)


def _wrap(args, dataset):
    sampler = DistributedSampler(dataset) if args.distributed else None
    dataloader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=sampler is None,
        num_workers=args.workers,
        pin_memory=True,
        sampler=sampler,
        drop_last=True,
    )
    dataloader.num_samples = len(dataset)
    dataloader.num_batches = len(dataloader)
    return DataInfo(dataloader, sampler)


def get_csv_dataset(args):
    return _wrap(args, CsvDataset(args.train_data, args.csv_separator))


def get_synthetic_dataset(args):
    return _wrap(args, SyntheticDataset(args.train_num_samples or 1000))


def get_dataset_fn(data_path, dataset_type):
    if dataset_type == "csv" or (dataset_type == "auto" and data_path.split(".")[-1] in ["csv", "tsv"]):
        return get_csv_dataset
    if dataset_type == "synthetic":
        return get_synthetic_dataset
    raise ValueError(f"Unsupported dataset type: {dataset_type}")


def get_data(args):
    return {"train": get_dataset_fn(args.train_data, args.dataset_type)(args)}
