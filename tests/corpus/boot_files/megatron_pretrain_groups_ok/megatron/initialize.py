import os
import random
from datetime import timedelta

import torch

from . import mpu
from .global_vars import get_args, set_global_variables


def initialize_megatron(extra_args_provider=None, args_defaults=None):
    assert torch.cuda.is_available(), "This needs CUDA."
    set_global_variables(extra_args_provider, args_defaults)
    args = get_args()
    _initialize_distributed(args)
    if args.rank == 0:
        print("> setting random seeds ...")
    seed = 1234 + 100 * mpu.get_data_parallel_rank()
    random.seed(seed)
    torch.manual_seed(seed)


def _initialize_distributed(args):
    device_count = torch.cuda.device_count()
    if torch.distributed.is_initialized():
        args.rank = torch.distributed.get_rank()
        args.world_size = torch.distributed.get_world_size()
    else:
        device = args.rank % device_count
        if args.local_rank is not None:
            assert args.local_rank == device, "expected local-rank to be the same as rank % device-count."
        else:
            args.local_rank = device
        torch.cuda.set_device(device)
        init_method = "tcp://"
        init_method += os.getenv("MASTER_ADDR", "localhost") + ":" + os.getenv("MASTER_PORT", "6000")
        del init_method  # env:// does the same
        torch.distributed.init_process_group(
            backend=args.distributed_backend,
            world_size=args.world_size,
            rank=args.rank,
            timeout=timedelta(minutes=args.distributed_timeout_minutes),
        )
    mpu.initialize_model_parallel(args.tensor_model_parallel_size)
