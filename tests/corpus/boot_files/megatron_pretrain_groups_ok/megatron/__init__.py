from .global_vars import get_args, get_timers
from .initialize import initialize_megatron


def print_rank_0(message):
    """Print on the first process only, if there are several."""
    import torch

    if torch.distributed.is_initialized():
        if torch.distributed.get_rank() == 0:
            print(message, flush=True)
    else:
        print(message, flush=True)
