import math
import sys

import torch

import util.misc as utils


def train_one_epoch(model, data_loader, optimizer, device, epoch, max_norm=0):
    model.train()
    total, steps = 0.0, 0
    for samples, targets in data_loader:
        boxes = torch.stack([t['boxes'] for t in targets]).to(device)
        loss_dict = {'loss_bbox': (model(samples.to(device)) - boxes).abs().mean()}
        losses = sum(loss_dict.values())
        # reduce losses over all GPUs for logging purposes
        loss_value = sum(utils.reduce_dict(loss_dict).values()).item()
        if not math.isfinite(loss_value):
            print("Loss is {}, stopping training".format(loss_value))
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        if max_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        total, steps = total + loss_value, steps + 1
    return {'train_loss': total / max(steps, 1)}


@torch.no_grad()
def evaluate(model, data_loader, device):
    model.eval()
    seen = []
    for samples, targets in data_loader:
        out = model(samples.to(device)).cpu()
        seen += [(t['image_id'], float((o - t['boxes']).abs().mean())) for o, t in zip(out, targets)]
    merged = dict(pair for part in utils.all_gather(seen) for pair in part)
    return {'val_error': sum(merged.values()) / max(len(merged), 1)}
