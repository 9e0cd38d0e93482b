import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from util.misc import get_world_size, is_dist_avail_and_initialized


class DETR(nn.Module):
    def __init__(self, backbone, num_classes, num_queries):
        super().__init__()
        self.backbone = getattr(torchvision.models, backbone)(norm_layer=torchvision.ops.FrozenBatchNorm2d)
        self.query_embed = nn.Embedding(num_queries, 256)
        self.proj = nn.Linear(1000, 256)
        self.class_embed = nn.Linear(256, num_classes + 1)
        self.bbox_embed = nn.Linear(256, 4)

    def forward(self, samples):
        h = self.proj(self.backbone(samples)).unsqueeze(1) + self.query_embed.weight
        return {'pred_logits': self.class_embed(h), 'pred_boxes': self.bbox_embed(h).sigmoid()}


class SetCriterion(nn.Module):
    def forward(self, outputs, targets):
        num_boxes = sum(len(t["labels"]) for t in targets)
        num_boxes = torch.as_tensor([num_boxes], dtype=torch.float, device=outputs['pred_logits'].device)
        if is_dist_avail_and_initialized():
            torch.distributed.all_reduce(num_boxes)
        num_boxes = torch.clamp(num_boxes / get_world_size(), min=1).item()
        losses = {}
        for i, t in enumerate(targets):
            n = len(t["labels"])
            ce = F.cross_entropy(outputs['pred_logits'][i, :n], t["labels"], reduction='sum')
            l1 = F.l1_loss(outputs['pred_boxes'][i, :n], t["boxes"], reduction='sum')
            losses['loss_ce'] = losses.get('loss_ce', 0) + ce / num_boxes
            losses['loss_bbox'] = losses.get('loss_bbox', 0) + l1 / num_boxes
        return losses


def build(args):
    model = DETR(args.backbone, num_classes=args.num_classes, num_queries=args.num_queries)
    return model, SetCriterion()
