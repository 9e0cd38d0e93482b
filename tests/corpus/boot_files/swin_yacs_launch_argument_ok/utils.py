import os

import torch
import torch.distributed as dist


def load_checkpoint(config, model, optimizer, loss_scaler, logger):
    logger.info(f"==============> Resuming form {config.MODEL.RESUME}....................")
    checkpoint = torch.load(config.MODEL.RESUME, map_location='cpu')
    msg = model.load_state_dict(checkpoint['model'], strict=False)
    logger.info(msg)
    if not config.EVAL_MODE and 'optimizer' in checkpoint and 'epoch' in checkpoint:
        optimizer.load_state_dict(checkpoint['optimizer'])
        loss_scaler.load_state_dict(checkpoint['scaler'])
        config.defrost()
        config.TRAIN.START_EPOCH = checkpoint['epoch'] + 1
        config.freeze()
    return checkpoint.get('max_accuracy', 0.0)


def save_checkpoint(config, epoch, model, max_accuracy, optimizer, loss_scaler, logger):
    save_path = os.path.join(config.OUTPUT, f'ckpt_epoch_{epoch}.pth')
    logger.info(f"{save_path} saving......")
    torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'max_accuracy': max_accuracy,
                'scaler': loss_scaler.state_dict(), 'epoch': epoch}, save_path)


def auto_resume_helper(output_dir):
    checkpoints = [ckpt for ckpt in os.listdir(output_dir) if ckpt.endswith('pth')]
    if len(checkpoints) == 0:
        return None
    return max([os.path.join(output_dir, d) for d in checkpoints], key=os.path.getmtime)


def reduce_tensor(tensor):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)
    rt /= dist.get_world_size()
    return rt
