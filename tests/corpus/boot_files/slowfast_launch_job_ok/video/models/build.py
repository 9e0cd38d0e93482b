import torch
from torch import nn


class SlowOnly(nn.Module):
    def __init__(self, classes=400):
        super().__init__()
        self.stem = nn.Conv3d(3, 16, (1, 7, 7), stride=(1, 2, 2))
        self.head = nn.Linear(16, classes)

    def forward(self, clip):
        return self.head(self.stem(clip).mean((2, 3, 4)))


def build_model(cfg):
    model = SlowOnly()
    if cfg["NUM_GPUS"]:
        cur_device = torch.cuda.current_device()
        model = model.cuda(device=cur_device)
    if cfg["NUM_GPUS"] > 1:
        model = torch.nn.parallel.DistributedDataParallel(
            module=model, device_ids=[cur_device], output_device=cur_device)
    return model
