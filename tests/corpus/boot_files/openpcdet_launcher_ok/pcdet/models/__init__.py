import torch.nn as nn
import torch.nn.functional as F


class PointPillar(nn.Module):
    def __init__(self, width, num_class):
        super().__init__()
        self.vfe, self.bn, self.head = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, num_class)

    def forward(self, batch):
        x = self.bn(self.vfe(batch['points']).amax(1))
        return F.cross_entropy(self.head(F.relu(x)), batch['label'])


def build_network(model_cfg):
    return {'PointPillar': PointPillar}[model_cfg.NAME](model_cfg.WIDTH, model_cfg.NUM_CLASS)


def model_fn_decorator():
    def model_func(model, batch_dict):
        return model({k: v.cuda(non_blocking=True) for k, v in batch_dict.items()})

    return model_func
