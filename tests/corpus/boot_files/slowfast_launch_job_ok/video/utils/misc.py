import torch

from video.utils import multiprocessing as mpu


def launch_job(cfg, init_method, func, daemon=False):
    """Run 'func' on one or more GPUs, specified in cfg"""
    if cfg["NUM_GPUS"] > 1:
        torch.multiprocessing.spawn(
            mpu.run,
            nprocs=cfg["NUM_GPUS"],
            args=(
                cfg["NUM_GPUS"],
                func,
                init_method,
                cfg["SHARD_ID"],
                cfg["NUM_SHARDS"],
                cfg["DIST_BACKEND"],
                cfg,
            ),
            daemon=daemon,
        )
    else:
        func(cfg=cfg)
