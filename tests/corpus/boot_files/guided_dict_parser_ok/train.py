"""Train a diffusion model on images."""
import argparse

import torch.distributed as dist

from guided import dist_util
from guided.image_datasets import load_data
from guided.script_util import (
    add_dict_to_argparser,
    args_to_dict,
    create_model_and_betas,
    model_and_diffusion_defaults,
)
from guided.train_util import TrainLoop


def main():
    args = create_argparser().parse_args()
    dist_util.setup_dist()

    model, betas = create_model_and_betas(**args_to_dict(args, model_and_diffusion_defaults().keys()))
    model.to(dist_util.dev())
    data = load_data(
        data_dir=args.data_dir,
        batch_size=args.batch_size,
        image_size=args.image_size,
        class_cond=args.class_cond,
    )
    TrainLoop(
        model=model,
        betas=betas,
        data=data,
        batch_size=args.batch_size,
        microbatch=args.microbatch,
        lr=args.lr,
        ema_rate=args.ema_rate,
        log_interval=args.log_interval,
        save_interval=args.save_interval,
        resume_checkpoint=args.resume_checkpoint,
        weight_decay=args.weight_decay,
        max_steps=args.max_steps,
    ).run_loop()
    dist.destroy_process_group()


def create_argparser():
    defaults = dict(
        data_dir="",
        schedule_sampler="uniform",
        lr=1e-4,
        weight_decay=0.0,
        max_steps=0,
        batch_size=1,
        microbatch=-1,  # -1 disables microbatches
        ema_rate="0.9999",  # comma-separated list of EMA values
        log_interval=10,
        save_interval=10000,
        resume_checkpoint="",
        use_fp16=False,
    )
    defaults.update(model_and_diffusion_defaults())
    parser = argparse.ArgumentParser()
    add_dict_to_argparser(parser, defaults)
    return parser


if __name__ == "__main__":
    main()
