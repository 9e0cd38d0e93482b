"""What people do with DistributedDataParallel beside the usual: all of it must work as if nobody timed it."""

from __future__ import annotations

import copy
import gc
import os
import sys
import time
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

STEPS = 8


class InGroups(DistributedDataParallel):
    """Train one model in each half of the ranks."""


class Compiled(DistributedDataParallel):
    """Train through torch.compile."""


def steps(model: nn.Module, seed: int) -> None:
    data = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        model.zero_grad()
        model(torch.randn(4, 16, generator=data)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad  # type: ignore[operator]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = halves[rank // 2]

    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    wrapped = InGroups(model, process_group=own)
    steps(wrapped, seed=rank)
    weights = [torch.empty_like(model.weight) for _ in range(4)]
    dist.all_gather(weights, model.weight.detach())
    assert torch.equal(weights[0], weights[1]), "a half trains one model"
    assert torch.equal(weights[2], weights[3]), "a half trains one model"
    assert not torch.equal(weights[0], weights[2]), "the halves do not train together"

    wrapped.register_comm_hook(None, fp16_compress_hook) if os.environ.get("JOBSUBMIT_PROFILE") == "buckets" else None
    steps(wrapped, seed=rank)

    gc.collect()
    gc.disable()
    gone = weakref.ref(wrapped)
    del wrapped
    assert gone() is None, "a model that nobody needs must go at once"
    gc.enable()

    compiled = torch.compile(Compiled(nn.Linear(16, 16)), backend="eager")
    with compiled.no_sync():
        compiled(torch.randn(4, 16)).sum().backward()
    steps(compiled, seed=rank)

    usual = DistributedDataParallel(nn.Linear(16, 16))
    steps(usual, seed=rank)
    assert copy.deepcopy(usual).module.weight.equal(usual.module.weight)

    sparse = DistributedDataParallel(nn.Embedding(8, 4, sparse=True))
    sparse(torch.tensor([1, 2])).sum().backward()

    recorder = sys.modules["_jobsubmit_agent.timing.install"].recorder
    if os.fork() == 0:  # a helper, as loaders have them
        torch.save({}, os.devnull)
        os._exit(0)
    os.wait()
    assert recorder.is_on
    os.dup2(os.open("/dev/full", os.O_WRONLY), recorder.descriptor)
    steps(compiled, seed=rank)
    torch.save({}, os.devnull)
    assert not recorder.is_on
    print(f"rank {rank} trained as usual", flush=True)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
