import os

import torch
import torch.utils.data as data


class Tensors(data.Dataset):
    root = "/data/coco_tensors"

    def __init__(self, opt, split):
        self.folder = os.path.join(self.root, split)
        self.names = sorted(os.listdir(self.folder))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        return torch.load(os.path.join(self.folder, self.names[i]))


class PascalTensors(Tensors):
    root = "/data/pascal_tensors"


dataset_factory = {"coco": Tensors, "pascal": PascalTensors}


def get_dataset(dataset, task):
    return dataset_factory[dataset]
