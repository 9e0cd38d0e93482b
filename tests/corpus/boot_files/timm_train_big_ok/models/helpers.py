import logging

import torch

_logger = logging.getLogger(__name__)


def load_checkpoint(model, checkpoint_path, use_ema=False):
    checkpoint = torch.load(checkpoint_path, map_location='cpu', weights_only=False)
    key = 'state_dict_ema' if use_ema and 'state_dict_ema' in checkpoint else 'state_dict'
    model.load_state_dict({k.removeprefix('module.'): v for k, v in checkpoint[key].items()})


def resume_checkpoint(model, checkpoint_path, optimizer=None, loss_scaler=None):
    checkpoint = torch.load(checkpoint_path, map_location='cpu', weights_only=False)
    model.load_state_dict({k.removeprefix('module.'): v for k, v in checkpoint['state_dict'].items()})
    if optimizer is not None and 'optimizer' in checkpoint:
        optimizer.load_state_dict(checkpoint['optimizer'])
    if loss_scaler is not None and 'amp_scaler' in checkpoint:
        loss_scaler.load_state_dict(checkpoint['amp_scaler'])
    _logger.info('Loaded checkpoint %s (epoch %s)', checkpoint_path, checkpoint['epoch'])
    return checkpoint['epoch'] + 1
