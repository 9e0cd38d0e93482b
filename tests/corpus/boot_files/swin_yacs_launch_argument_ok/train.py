import argparse
import json
import os
import random
import time

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist

from config import get_config
from data import build_loader
from logger import create_logger
from utils import auto_resume_helper, load_checkpoint, reduce_tensor, save_checkpoint


def parse_option():
    parser = argparse.ArgumentParser('Swin Transformer training and evaluation script', add_help=False)
    parser.add_argument('--cfg', type=str, required=True, metavar="FILE", help='path to config file')
    parser.add_argument("--opts", help="Modify config options by adding 'KEY VALUE' pairs", default=None, nargs='+')
    # easy config modification
    parser.add_argument('--batch-size', type=int, help="batch size for single GPU")
    parser.add_argument('--data-path', type=str, help='path to dataset')
    parser.add_argument('--cache-mode', type=str, default='part', choices=['no', 'full', 'part'])
    parser.add_argument('--resume', help='resume from checkpoint')
    parser.add_argument('--accumulation-steps', type=int, help="gradient accumulation steps")
    parser.add_argument('--disable_amp', action='store_true')
    parser.add_argument('--output', default='output', type=str, metavar='PATH')
    parser.add_argument('--tag', help='tag of experiment')
    parser.add_argument('--eval', action='store_true', help='Perform evaluation only')
    # distributed training
    parser.add_argument("--local-rank", "--local_rank", type=int, required=True)
    args, unparsed = parser.parse_known_args()
    config = get_config(args)
    return args, config


def main(config):
    dataset_train, data_loader_train, data_loader_val = build_loader(config)
    logger.info(f"Creating model:{config.MODEL.TYPE}/{config.MODEL.NAME}")
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(7), torch.nn.Flatten(),
                                torch.nn.Linear(147, config.MODEL.NUM_CLASSES))
    model.cuda()
    model_without_ddp = model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.TRAIN.BASE_LR)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[config.LOCAL_RANK], broadcast_buffers=False)
    loss_scaler = torch.amp.GradScaler('cuda', enabled=config.AMP_ENABLE)
    criterion = torch.nn.CrossEntropyLoss()

    max_accuracy = 0.0
    if config.TRAIN.AUTO_RESUME:
        resume_file = auto_resume_helper(config.OUTPUT)
        if resume_file:
            config.defrost()
            config.MODEL.RESUME = resume_file
            config.freeze()
    if config.MODEL.RESUME:
        max_accuracy = load_checkpoint(config, model_without_ddp, optimizer, loss_scaler, logger)
    if config.EVAL_MODE:
        validate(config, data_loader_val, model)
        return

    logger.info("Start training")
    start_time = time.time()
    for epoch in range(config.TRAIN.START_EPOCH, config.TRAIN.EPOCHS):
        data_loader_train.sampler.set_epoch(epoch)
        train_one_epoch(config, model, criterion, data_loader_train, optimizer, epoch, loss_scaler)
        if dist.get_rank() == 0 and (epoch % config.SAVE_FREQ == 0 or epoch == (config.TRAIN.EPOCHS - 1)):
            save_checkpoint(config, epoch, model_without_ddp, max_accuracy, optimizer, loss_scaler, logger)
        acc1 = validate(config, data_loader_val, model)
        logger.info(f"Accuracy of the network: {acc1:.1f}%")
        max_accuracy = max(max_accuracy, acc1)
    logger.info('Training time {:.0f}s'.format(time.time() - start_time))


def train_one_epoch(config, model, criterion, data_loader, optimizer, epoch, loss_scaler):
    model.train()
    optimizer.zero_grad()
    steps = config.TRAIN.ACCUMULATION_STEPS
    for idx, (samples, targets) in enumerate(data_loader):
        samples = samples.cuda(non_blocking=True)
        targets = targets.cuda(non_blocking=True)
        with torch.amp.autocast('cuda', enabled=config.AMP_ENABLE):
            loss = criterion(model(samples), targets) / steps
        loss_scaler.scale(loss).backward()
        if (idx + 1) % steps == 0:
            loss_scaler.step(optimizer)
            loss_scaler.update()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        if idx % config.PRINT_FREQ == 0:
            memory_used = torch.cuda.max_memory_allocated() / (1024.0 * 1024.0)
            logger.info(f'Train: [{epoch}/{config.TRAIN.EPOCHS}][{idx}] loss {loss.item() * steps:.4f} mem {memory_used:.0f}MB')


@torch.no_grad()
def validate(config, data_loader, model):
    model.eval()
    correct, seen = torch.zeros(1).cuda(), 0
    for images, target in data_loader:
        output = model(images.cuda(non_blocking=True))
        acc1 = (output.argmax(1) == target.cuda(non_blocking=True)).float().mean()
        correct += reduce_tensor(acc1) * target.size(0)
        seen += target.size(0)
    return correct.item() / max(seen, 1) * 100


if __name__ == '__main__':
    args, config = parse_option()
    if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:
        rank = int(os.environ["RANK"])
        world_size = int(os.environ['WORLD_SIZE'])
        print(f"RANK and WORLD_SIZE in environ: {rank}/{world_size}")
    else:
        rank = -1
        world_size = -1
    torch.cuda.set_device(config.LOCAL_RANK)
    torch.distributed.init_process_group(backend='nccl', init_method='env://', world_size=world_size, rank=rank)
    torch.distributed.barrier()

    seed = config.SEED + dist.get_rank()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    cudnn.benchmark = True

    # linear scale the learning rate according to total batch size, may not be optimal
    linear_scaled_lr = config.TRAIN.BASE_LR * config.DATA.BATCH_SIZE * dist.get_world_size() / 512.0
    config.defrost()
    config.TRAIN.BASE_LR = linear_scaled_lr * config.TRAIN.ACCUMULATION_STEPS
    config.freeze()
    os.makedirs(config.OUTPUT, exist_ok=True)
    logger = create_logger(output_dir=config.OUTPUT, dist_rank=dist.get_rank(), name=f"{config.MODEL.NAME}")
    if dist.get_rank() == 0:
        path = os.path.join(config.OUTPUT, "config.json")
        with open(path, "w") as f:
            f.write(config.dump())
        logger.info(f"Full config saved to {path}")
    logger.info(json.dumps(vars(args)))
    main(config)
    dist.destroy_process_group()
