from pathlib import Path

import torch
import torchvision
import torchvision.transforms.functional as F


class CocoDetection(torchvision.datasets.CocoDetection):
    def __getitem__(self, idx):
        img, annotations = super().__getitem__(idx)
        w, h = img.size
        boxes = torch.tensor([a['bbox'] for a in annotations]).reshape(-1, 4) / torch.tensor([w, h, w, h])
        target = {'image_id': torch.tensor(self.ids[idx]), 'boxes': boxes,
                  'labels': torch.tensor([a['category_id'] for a in annotations], dtype=torch.int64)}
        return F.to_tensor(F.resize(img, [512, 512])), target


def build(image_set, args):
    root = Path(args.coco_path)
    assert root.exists(), f'provided COCO path {root} does not exist'
    paths = {
        "train": (root / "train2017", root / "annotations" / 'instances_train2017.json'),
        "val": (root / "val2017", root / "annotations" / 'instances_val2017.json'),
    }
    img_folder, ann_file = paths[image_set]
    return CocoDetection(img_folder, ann_file)
