import logging
import os
import random
import sys
from datetime import datetime

import numpy as np
import torch
from torch import optim

try:
    import wandb
except ImportError:
    wandb = None

try:
    import horovod.torch as hvd
except ImportError:
    hvd = None

from clip_training.data import get_data
from clip_training.distributed import broadcast_object, init_distributed_device, is_master
from clip_training.loss import ClipLoss
from clip_training.model import TwoTower
from clip_training.params import parse_args


def random_seed(seed=42, rank=0):
    torch.manual_seed(seed + rank)
    np.random.seed(seed + rank)
    random.seed(seed + rank)


def main(args):
    args = parse_args(args)
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    device = init_distributed_device(args)
    if args.name is None:
        # make sure all ranks agree on the name
        date_str = datetime.now().strftime("%Y_%m_%d-%H_%M_%S")
        if args.distributed:
            date_str = broadcast_object(args, date_str)
        args.name = "-".join([date_str, f"lr_{args.lr}", f"b_{args.batch_size}"])
    log_base_path = os.path.join(args.logs, args.name)
    if is_master(args):
        os.makedirs(os.path.join(log_base_path, "checkpoints"), exist_ok=True)
    logging.basicConfig(level=logging.INFO if is_master(args) else logging.ERROR)

    random_seed(args.seed, 0)
    model = TwoTower(args.embed_dim).to(device)
    random_seed(args.seed, args.rank)
    if args.distributed and not args.horovod:
        if args.use_bn_sync:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        ddp_args = {}
        if args.ddp_static_graph:
            ddp_args["static_graph"] = True
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device], **ddp_args)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, betas=(args.beta1, args.beta2), **args.opt_kwargs)
    if args.horovod:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    start_epoch = 0
    if args.resume is not None:
        checkpoint = torch.load(args.resume, map_location="cpu")
        start_epoch = checkpoint["epoch"]
        sd = checkpoint["state_dict"]
        if not args.distributed and next(iter(sd.items()))[0].startswith("module"):
            sd = {k[len("module."):]: v for k, v in sd.items()}
        model.load_state_dict(sd)
    data = get_data(args)
    loss_fn = ClipLoss(args.local_loss, args.gather_with_grad, args.rank, args.world_size)
    if args.report_to == "wandb" and is_master(args):
        assert wandb is not None, "Please install wandb."
        wandb.init(project="clip", name=args.name, config=vars(args))

    for epoch in range(start_epoch, args.epochs):
        data["train"].set_epoch(epoch)
        model.train()
        for i, (images, texts) in enumerate(data["train"].dataloader):
            images, texts = images.to(device, non_blocking=True), texts.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = loss_fn(*model(images, texts))
            loss.backward()
            optimizer.step()
            if is_master(args) and i % args.log_every_n_steps == 0:
                logging.info(f"Train Epoch: {epoch} [{i}/{data['train'].dataloader.num_batches}] Loss: {loss.item():.4f}")
        if is_master(args) and (epoch + 1) % args.save_frequency == 0:
            torch.save(
                {"epoch": epoch + 1, "name": args.name, "state_dict": model.state_dict()},
                os.path.join(log_base_path, "checkpoints", f"epoch_{epoch + 1}.pt"),
            )
    if args.distributed and not args.horovod:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
