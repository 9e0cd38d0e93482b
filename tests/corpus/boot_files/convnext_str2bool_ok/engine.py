import math

import torch

import utils


def train_one_epoch(model, criterion, data_loader, optimizer, device, epoch, loss_scaler, steps_per_epoch,
                    update_freq, use_amp=False, model_ema=None):
    model.train(True)
    optimizer.zero_grad()
    for data_iter_step, (samples, targets) in enumerate(data_loader):
        step = data_iter_step // update_freq
        if step >= steps_per_epoch:
            continue
        samples = samples.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.amp.autocast('cuda', enabled=use_amp):
            loss = criterion(model(samples), targets)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print("Loss is {}, stopping training".format(loss_value))
            assert math.isfinite(loss_value)
        loss /= update_freq
        update_grad = (data_iter_step + 1) % update_freq == 0
        if use_amp:
            loss_scaler(loss, optimizer, update_grad=update_grad)
        else:
            loss.backward()
            if update_grad:
                optimizer.step()
        if update_grad:
            optimizer.zero_grad()
            if model_ema is not None:
                model_ema.update_parameters(model.module if hasattr(model, 'module') else model)
        if step % 10 == 0 and utils.is_main_process():
            print(f'Epoch: [{epoch}] {step}/{steps_per_epoch} loss {loss_value:.4f}')


@torch.no_grad()
def evaluate(data_loader, model, device, use_amp=False):
    model.eval()
    hits = torch.zeros(2, device=device, dtype=torch.float64)
    for images, target in data_loader:
        with torch.amp.autocast('cuda', enabled=use_amp):
            output = model(images.to(device, non_blocking=True))
        hits[0] += (output.argmax(1).cpu() == target).sum().item()
        hits[1] += target.numel()
    if utils.get_world_size() > 1:
        torch.distributed.all_reduce(hits)
    return 100.0 * (hits[0] / hits[1]).item()
