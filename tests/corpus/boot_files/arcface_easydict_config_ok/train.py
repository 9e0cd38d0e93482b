import argparse
import logging
import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from backbones import get_model
from dataset import get_dataloader
from losses import CombinedMarginLoss, PartialHead
from utils.utils_config import get_config
from utils.utils_logging import AverageMeter, init_logging

try:
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("nccl")
except KeyError:
    rank, local_rank, world_size = 0, 0, 1
    distributed.init_process_group(backend="nccl", init_method="tcp://127.0.0.1:12584", rank=rank, world_size=world_size)


def main(args):
    cfg = get_config(args.config)
    torch.manual_seed(cfg.seed + rank)
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_device(local_rank)
    os.makedirs(cfg.output, exist_ok=True)
    init_logging(rank, cfg.output)

    train_loader = get_dataloader(cfg.rec, local_rank, cfg.batch_size, cfg.seed, cfg.num_workers)
    backbone = get_model(cfg.network, dropout=0.0, num_features=cfg.embedding_size).cuda()
    backbone = DistributedDataParallel(module=backbone, broadcast_buffers=False, device_ids=[local_rank],
                                       bucket_cap_mb=16, find_unused_parameters=True)
    backbone.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook)
    backbone.train()

    margin_loss = CombinedMarginLoss(64, cfg.margin_list[0], cfg.margin_list[1], cfg.margin_list[2])
    head = PartialHead(margin_loss, cfg.embedding_size, cfg.num_classes).train().cuda()
    head = DistributedDataParallel(head, device_ids=[local_rank])
    opt = torch.optim.SGD([{"params": backbone.parameters()}, {"params": head.parameters()}], lr=cfg.lr, momentum=0.9,
                          weight_decay=cfg.weight_decay)
    cfg.total_batch_size = cfg.batch_size * world_size
    cfg.total_step = cfg.num_image // cfg.total_batch_size * cfg.num_epoch
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=cfg.total_step, power=2)

    start_epoch, global_step = 0, 0
    if cfg.resume:
        dict_checkpoint = torch.load(os.path.join(cfg.output, "checkpoint.pt"), map_location=f"cuda:{local_rank}")
        start_epoch, global_step = dict_checkpoint["epoch"], dict_checkpoint["global_step"]
        backbone.module.load_state_dict(dict_checkpoint["backbone"])
        head.module.load_state_dict(dict_checkpoint["head"])
        opt.load_state_dict(dict_checkpoint["opt"])
    for key, value in cfg.items():
        logging.info(": " + key + " " * (25 - len(key)) + str(value))

    loss_am = AverageMeter()
    amp = torch.cuda.amp.grad_scaler.GradScaler(growth_interval=100)
    for epoch in range(start_epoch, cfg.num_epoch):
        train_loader.sampler.set_epoch(epoch)
        for img, local_labels in train_loader:
            global_step += 1
            local_embeddings = backbone(img.cuda(local_rank, non_blocking=True))
            loss = head(local_embeddings, local_labels.cuda(local_rank, non_blocking=True))
            if cfg.fp16:
                amp.scale(loss).backward()
                if global_step % cfg.gradient_acc == 0:
                    amp.unscale_(opt)
                    torch.nn.utils.clip_grad_norm_(backbone.parameters(), 5)
                    amp.step(opt)
                    amp.update()
                    opt.zero_grad()
            else:
                loss.backward()
                if global_step % cfg.gradient_acc == 0:
                    torch.nn.utils.clip_grad_norm_(backbone.parameters(), 5)
                    opt.step()
                    opt.zero_grad()
            sched.step()
            loss_am.update(loss.item(), 1)
            if rank == 0 and global_step % cfg.frequent == 0:
                logging.info("Epoch %d step %d loss %.4f", epoch, global_step, loss_am.avg)
                loss_am.reset()
        if rank == 0:
            checkpoint = {"epoch": epoch + 1, "global_step": global_step, "backbone": backbone.module.state_dict(),
                          "head": head.module.state_dict(), "opt": opt.state_dict()}
            torch.save(checkpoint, os.path.join(cfg.output, "checkpoint.pt"))
            torch.save(backbone.module.state_dict(), os.path.join(cfg.output, "model.pt"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Distributed Arcface Training in Pytorch")
    parser.add_argument("config", type=str, help="py config file")
    main(parser.parse_args())
