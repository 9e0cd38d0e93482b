from functools import partial

import torch
import torch.nn as nn


class MaskedAutoencoder(nn.Module):
    def __init__(self, patch=16, width=768, depth=12, norm_pix_loss=False):
        super().__init__()
        self.patch = patch
        self.norm_pix_loss = norm_pix_loss
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 12, batch_first=True), depth)
        self.pred = nn.Linear(width, patch * patch * 3)

    def forward(self, imgs, mask_ratio=0.75):
        x = self.embed(imgs).flatten(2).transpose(1, 2)
        mask = (torch.rand(x.shape[:2], device=x.device) < mask_ratio).float()
        pred = self.pred(self.body(x * (1 - mask.unsqueeze(-1))))
        target = nn.functional.unfold(imgs, self.patch, stride=self.patch).transpose(1, 2)
        loss = ((pred - target) ** 2).mean(-1)
        return (loss * mask).sum() / mask.sum(), pred, mask


mae_vit_base_patch16 = partial(MaskedAutoencoder, 16, 768, 12)
mae_vit_large_patch16 = partial(MaskedAutoencoder, 16, 1008, 24)
