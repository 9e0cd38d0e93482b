#!/usr/bin/env python3 -u
"""Train a new model on one or across multiple GPUs."""
import logging
import math
import random
import sys

import numpy as np
import torch

import distributed_utils
import options
import tasks
from models import build_model
from trainer import Trainer

logging.basicConfig(format="%(asctime)s | %(levelname)s | %(name)s | %(message)s", level=logging.INFO, stream=sys.stdout)
logger = logging.getLogger("train")


def main(args):
    np.random.seed(args.seed)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    if distributed_utils.is_master(args):
        logger.info(args)
    task = tasks.setup_task(args)
    model = build_model(args, task)
    criterion = task.build_criterion(args)
    trainer = Trainer(args, task, model, criterion)
    if trainer.load_checkpoint(args.restore_file) is not None and distributed_utils.is_master(args):
        logger.info("resumed at update %d", trainer.num_updates)
    max_epoch = args.max_epoch or math.inf
    max_update = args.max_update or math.inf
    while trainer.epoch <= max_epoch and trainer.num_updates < max_update:
        itr = task.get_batch_iterator(trainer.epoch, args.distributed_world_size, args.distributed_rank)
        for i, batch in enumerate(itr):
            log_output = trainer.train_step(batch)
            if i % args.log_interval == 0 and distributed_utils.is_master(args):
                logger.info("epoch %03d | %s", trainer.epoch, log_output)
            if trainer.num_updates >= max_update:
                break
        if not args.no_save:
            trainer.save_checkpoint(args.save_dir)
        trainer.epoch += 1


def cli_main(modify_parser=None):
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, modify_parser=modify_parser)
    distributed_utils.call_main(args, main)


if __name__ == "__main__":
    cli_main()
