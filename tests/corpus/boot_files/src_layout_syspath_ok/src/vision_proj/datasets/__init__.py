from torch.utils.data import DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor


def build_dataset(root):
    return ImageFolder(root, Compose([RandomResizedCrop(96), ToTensor()]))


def build_sampler(dataset, train=True):
    return DistributedSampler(dataset, shuffle=train)
