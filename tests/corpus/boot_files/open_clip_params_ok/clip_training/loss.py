import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
import torch.nn.functional as F


def gather_features(image_features, text_features, local_loss, gather_with_grad, rank, world_size):
    if gather_with_grad:
        return (torch.cat(torch.distributed.nn.all_gather(image_features)),
                torch.cat(torch.distributed.nn.all_gather(text_features)))
    images = [torch.zeros_like(image_features) for _ in range(world_size)]
    texts = [torch.zeros_like(text_features) for _ in range(world_size)]
    dist.all_gather(images, image_features)
    dist.all_gather(texts, text_features)
    if not local_loss:
        # ensure grads for local rank when all_* features don't have a gradient
        images[rank] = image_features
        texts[rank] = text_features
    return torch.cat(images), torch.cat(texts)


class ClipLoss(nn.Module):
    def __init__(self, local_loss, gather_with_grad, rank, world_size):
        super().__init__()
        self.local_loss, self.gather_with_grad = local_loss, gather_with_grad
        self.rank, self.world_size = rank, world_size

    def forward(self, image_features, text_features, logit_scale):
        labels = torch.arange(len(image_features), device=image_features.device)
        if self.world_size > 1:
            images, texts = gather_features(
                image_features, text_features, self.local_loss, self.gather_with_grad, self.rank, self.world_size
            )
            if self.local_loss:
                a, b = logit_scale * image_features @ texts.T, logit_scale * text_features @ images.T
                labels = labels + len(image_features) * self.rank
            else:
                a = logit_scale * images @ texts.T
                b, labels = a.T, torch.arange(len(images), device=images.device)
        else:
            a = logit_scale * image_features @ text_features.T
            b = a.T
        return (F.cross_entropy(a, labels) + F.cross_entropy(b, labels)) / 2
