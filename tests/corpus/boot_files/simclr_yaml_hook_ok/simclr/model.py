import torch.nn as nn
import torchvision


class TransformsSimCLR:
    def __init__(self, size):
        self.train_transform = torchvision.transforms.Compose([
            torchvision.transforms.RandomResizedCrop(size=size),
            torchvision.transforms.RandomHorizontalFlip(),
            torchvision.transforms.ToTensor(),
        ])

    def __call__(self, x):
        return self.train_transform(x), self.train_transform(x)


class SimCLR(nn.Module):
    def __init__(self, projection_dim):
        super().__init__()
        self.encoder = torchvision.models.resnet18(num_classes=512)
        self.projector = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, projection_dim))

    def forward(self, x_i, x_j):
        return self.projector(self.encoder(x_i)), self.projector(self.encoder(x_j))
