import math
import sys

import torch

import util.misc as utils


def train_one_epoch(model, criterion, data_loader, optimizer, device, epoch, max_norm=0.0):
    model.train()
    criterion.train()
    last = {}
    for step, (samples, targets) in enumerate(data_loader):
        samples = samples.to(device)
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        loss_dict = criterion(model(samples), targets)
        losses = sum(loss_dict.values())
        # reduce losses over all GPUs for logging purposes
        loss_dict_reduced = utils.reduce_dict(loss_dict)
        loss_value = sum(loss_dict_reduced.values()).item()
        if not math.isfinite(loss_value):
            print("Loss is {}, stopping training".format(loss_value))
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        if max_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        if step % 10 == 0:
            print(f'Epoch: [{epoch}] {step}/{len(data_loader)} loss {loss_value:.4f}')
        last = {'train_loss': loss_value}
    return last


@torch.no_grad()
def evaluate(model, criterion, data_loader, base_ds, device):
    model.eval()
    criterion.eval()
    results = {}
    for samples, targets in data_loader:
        outputs = model(samples.to(device))
        for target, score in zip(targets, outputs['pred_logits'].softmax(-1).amax((1, 2)).tolist()):
            results[int(target['image_id'])] = score
    merged = {}
    for part in utils.all_gather(results):
        merged.update(part)
    found = sum(1 for image_id in merged if image_id in base_ds)
    print(f'evaluated {found} images')
    return {'test_score': sum(merged.values()) / max(len(merged), 1)}
