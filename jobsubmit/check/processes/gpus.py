"""Which GPUs processes take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.code import Code, is_count
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.start.devices import hidden_gpus
from jobsubmit.common.finding import Finding


def check_gpus_taken(code: Code) -> Iterator[Finding]:
    """Yield a warning where two processes of a node select the same GPU, or one that the node does not have."""
    chosen = [(one, event, number) for one in code.followed for event, number in _devices(one)]
    gpus = code.facts.gpus
    if code.has_framework or not gpus:
        return
    for (one, event, number), (other, second, same) in itertools.combinations(chosen, 2):
        is_beside = one.process.node == other.process.node and one.process.local_rank != other.process.local_rank
        sees_same = not event.visible or (isinstance(event.visible, str) and event.visible == second.visible)
        if is_beside and event.call is second.call and number == same and sees_same:
            yield Finding(
                "warning",
                "fixed-device",
                event.module.where(event.call),
                f"every process uses cuda:{number}, so the {code.processes} processes of a node share one GPU"
                if one.process.local_rank == 0
                else f"several processes of a node use cuda:{number}",
                "select the GPU by the local rank: torch.cuda.set_device(local_rank)",
            )
            return
    for one, event, number in chosen:
        visible = event.visible if isinstance(event.visible, str) else ""
        seen = len([part for part in visible.split(",") if part.strip()])
        if visible and number >= seen and not code.facts.environment.get("CUDA_VISIBLE_DEVICES"):
            yield from hidden_gpus(event.module.where(event.call), visible, max(code.processes or 0, number + 1))
            return
        if number >= gpus:
            is_rank = number == one.process.rank and code.facts.nodes > 1
            yield Finding(
                "error",
                "rank-as-device" if is_rank else "more-processes",
                event.module.where(event.call),
                f"rank {one.process.rank} would use cuda:{number}, but a node has {gpus}",
                'use the local rank: int(os.environ["LOCAL_RANK"])',
            )
            return


def _devices(one: Followed) -> Iterator[tuple[Event, int]]:
    """Yield the calls that select a GPU, with its number."""
    for event in one.events.values():
        if event.name == "torch.cuda.set_device":
            number = _number_of(event.argument("device", 0, UNKNOWN))
        elif event.last == "DistributedDataParallel":
            given = event.argument("device_ids", 1)
            number = _number_of(given[0]) if isinstance(given, list) and len(given) == 1 else None
        else:
            continue
        if number is not None and event.is_sure:
            yield event, number


def _number_of(device: Any) -> int | None:
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        return int(device[5:])
    return device if is_count(device) and device >= 0 else None


def check_spread_models(code: Code) -> Iterator[Finding]:
    """Yield a warning where each of several processes spreads a model over all GPUs of its node."""
    for event in (event for one in code.followed for event in one.events.values()):
        if event.last == "from_pretrained" and event.argument("device_map") in _SPREADS and (code.processes or 0) > 1:
            yield Finding(
                "warning",
                "spread-over-all",
                event.module.where(event.call),
                f"device_map: each of the {code.processes} processes of a node spreads the model over all GPUs",
                'start one process on each node, or give each process its GPU: device_map={"": local_rank}',
            )
            return


_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
