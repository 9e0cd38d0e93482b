import os

from torchvision import datasets, transforms


def build_dataset(is_train, args):
    transform = build_transform(is_train, args)
    if args.data_set == 'CIFAR':
        return datasets.CIFAR100(args.data_path, train=is_train, transform=transform), 100
    root = os.path.join(args.data_path, 'train' if is_train else 'val')
    return datasets.ImageFolder(root, transform=transform), 1000 if args.data_set == 'IMNET' else 10000


def build_transform(is_train, args):
    t = [transforms.RandomResizedCrop(args.input_size), transforms.RandomHorizontalFlip()] if is_train else [
        transforms.Resize(int(args.input_size * 256 / 224)), transforms.CenterCrop(args.input_size)]
    return transforms.Compose(t + [transforms.ToTensor()])
