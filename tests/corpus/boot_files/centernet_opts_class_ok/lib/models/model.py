import torch
from torch import nn


class HeatmapNet(nn.Module):
    def __init__(self, num_classes, head_conv):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3), nn.ReLU(inplace=True))
        self.hm = nn.Sequential(nn.Conv2d(64, head_conv, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(head_conv, num_classes, 1))

    def forward(self, x):
        return {"hm": self.hm(self.stem(x))}


def create_model(arch, num_classes, head_conv):
    return HeatmapNet(num_classes, head_conv)


def load_model(model, model_path, optimizer=None, resume=False, lr=None, lr_step=None):
    checkpoint = torch.load(model_path, map_location=lambda storage, loc: storage)
    model.load_state_dict(checkpoint["state_dict"], strict=False)
    start_epoch = 0
    if optimizer is not None and resume and "optimizer" in checkpoint:
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"]
        for step in lr_step:
            if start_epoch >= step:
                lr *= 0.1
        for group in optimizer.param_groups:
            group["lr"] = lr
    return model, optimizer, start_epoch


def save_model(path, epoch, model, optimizer=None):
    data = {"epoch": epoch, "state_dict": model.state_dict()}
    if optimizer is not None:
        data["optimizer"] = optimizer.state_dict()
    torch.save(data, path)
