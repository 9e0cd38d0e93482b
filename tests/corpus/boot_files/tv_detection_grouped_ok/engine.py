import math
import sys

import torch
import utils


def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq, scaler=None):
    model.train()
    lr_scheduler = None
    if epoch == 0:
        warmup_iters = min(1000, len(data_loader) - 1)
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0 / 1000, total_iters=warmup_iters)
    for i, (images, targets) in enumerate(data_loader):
        images = list(image.to(device) for image in images)
        targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        # reduce losses over all GPUs for logging purposes
        loss_dict_reduced = utils.reduce_dict(loss_dict)
        loss_value = sum(loss for loss in loss_dict_reduced.values()).item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
        if i % print_freq == 0:
            print(f"Epoch: [{epoch}] {i} loss {loss_value:.4f} lr {optimizer.param_groups[0]['lr']:.6f}")


@torch.inference_mode()
def evaluate(model, data_loader, device):
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cpu_device = torch.device("cpu")
    model.eval()
    scores = {}
    for images, targets in data_loader:
        outputs = model(list(img.to(device) for img in images))
        outputs = [{k: v.to(cpu_device) for k, v in t.items()} for t in outputs]
        for target, output in zip(targets, outputs):
            scores[int(target["image_id"])] = float(output["scores"].sum())
    merged = {k: v for part in utils.all_gather(scores) for k, v in part.items()}
    print(f"mean score over {len(merged)} images: {sum(merged.values()) / max(1, len(merged)):.4f}")
    torch.set_num_threads(n_threads)
