import functools

import torch
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

bfSixteen = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)


def get_wrapper(layer_class):
    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={layer_class})
