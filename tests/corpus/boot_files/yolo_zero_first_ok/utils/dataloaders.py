import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, distributed
from torchvision.io import read_image
from torchvision.transforms.functional import resize

from utils.torch_utils import torch_distributed_zero_first


class LoadImagesAndLabels(Dataset):
    def __init__(self, path, img_size):
        self.files = sorted(Path(path).glob('*.jpg'))
        self.img_size = img_size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        label = self.files[i].with_suffix('.txt').read_text().split()
        img = resize(read_image(str(self.files[i])), [self.img_size, self.img_size]).float() / 255
        return img, torch.tensor([float(v) for v in label[:5]])


def create_dataloader(path, imgsz, batch_size, rank=-1, workers=8, shuffle=False, seed=0):
    with torch_distributed_zero_first(rank):  # init dataset *.cache only once if DDP
        dataset = LoadImagesAndLabels(path, imgsz)
    batch_size = min(batch_size, len(dataset))
    nw = min([os.cpu_count() // max(torch.cuda.device_count(), 1), batch_size if batch_size > 1 else 0, workers])
    sampler = None if rank == -1 else distributed.DistributedSampler(dataset, shuffle=shuffle)
    generator = torch.Generator()
    generator.manual_seed(6148914691236517205 + seed)
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle and sampler is None, num_workers=nw,
                      sampler=sampler, pin_memory=True, generator=generator)
