import torch.utils.data

from .coco import CocoDetection, build as build_coco

NAMES = {'coco': 'MS COCO'}


def get_coco_api_from_dataset(dataset):
    for _ in range(10):
        if isinstance(dataset, torch.utils.data.Subset):
            dataset = dataset.dataset
    return set(dataset.ids) if isinstance(dataset, CocoDetection) else set()


def build_dataset(image_set, args):
    if args.dataset_file == 'coco':
        return build_coco(image_set, args)
    raise ValueError(f'dataset {args.dataset_file} not supported')
