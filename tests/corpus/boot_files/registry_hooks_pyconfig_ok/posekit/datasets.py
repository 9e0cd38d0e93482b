import torch
from torch.utils.data import Dataset

from .builder import DATASETS


@DATASETS.register_module()
class Keypoints(Dataset):
    def __init__(self, ann_file):
        self.items = torch.load(ann_file)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]["image"], self.items[i]["heatmap"]
