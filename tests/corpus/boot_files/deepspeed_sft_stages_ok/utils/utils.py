import os
import random

import numpy as np
import torch
import torch.distributed as dist


def print_rank_0(msg, rank=None):
    if rank is not None and rank <= 0:
        print(msg)
    elif is_rank_0():
        print(msg)


def is_rank_0():
    """Whether this is the first process of all."""
    return not dist.is_initialized() or dist.get_rank() == 0


def set_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def to_device(batch, device):
    return {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}


def get_all_reduce_mean(tensor):
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor / dist.get_world_size()


def save_hf_format(model, tokenizer, args, sub_folder=""):
    target = os.path.join(args.output_dir, sub_folder)
    os.makedirs(target, exist_ok=True)
    to_save = model.module if hasattr(model, "module") else model
    torch.save({k: v for k, v in to_save.state_dict().items() if "lora" not in k},
               os.path.join(target, "pytorch_model.bin"))
    to_save.config.to_json_file(os.path.join(target, "config.json"))
    tokenizer.save_vocabulary(target)
