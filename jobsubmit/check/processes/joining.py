"""With which numbers the processes join their group, and which GPUs they take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.code import INIT, MESHES, Code
from jobsubmit.check.interpreter.machine import Followed
from jobsubmit.check.interpreter.trace import Event, Group, Inner
from jobsubmit.check.program.calls import PROCESSES, SPAWNS
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.start.devices import hidden_gpus
from jobsubmit.common.finding import Finding

_RANK, _WORLD_SIZE = 4, 3  # the places of arguments of init_process_group


def check_joining(code: Code) -> Iterator[Finding]:
    """Yield an error where two processes join as the same rank, or the number of processes is another than the job's."""
    joins = [(one, _first(one, INIT)) for one in code.followed]
    for (one, event), (other, second) in itertools.combinations(joins, 2):
        if event is None or second is None or not (event.is_sure and second.is_sure):
            continue
        rank, other_rank = (found.argument("rank", _RANK) for found in (event, second))
        if _is_number(rank) and rank == other_rank:
            yield Finding(
                "error",
                "same-ranks",
                event.module.where(event.call),
                f"process {one.process.rank} and process {other.process.rank} of the job both join as rank {rank}",
                "leave rank and world_size out: they are read from the environment (RANK and WORLD_SIZE)"
                if code.facts.has_launcher
                else "compute the rank from the number of the node: node_rank * processes_per_node + local_rank",
            )
            return
    for one, event in joins:
        size = event.argument("world_size", _WORLD_SIZE) if event is not None else None
        if event is not None and _is_number(size) and size > 0 and size != one.process.world_size:
            yield Finding(
                "error" if event.is_sure else "warning",
                "fixed-world-size",
                event.module.where(event.call),
                f"world_size is {size}, but the job has {one.process.world_size} processes",
                "leave rank and world_size out, which are in the environment; under mp.spawn, compute them",
            )
            return


def check_joining_twice(code: Code) -> Iterator[Finding]:
    """Yield an error where a process makes its group although it surely has one."""
    for one in code.followed:
        made: Event | None = None
        for event in one.events.values():
            if event.name.endswith("destroy_process_group"):
                made = None
            if event.name not in (INIT, *MESHES) or not event.is_sure:
                continue
            if made is not None and event.name == INIT:
                yield Finding(
                    "error",
                    "second-init",
                    event.module.where(event.call),
                    f"the process group exists already: {made.module.where(made.call)} makes it",
                    "make it once, or ask dist.is_initialized() first",
                )
                return
            made = event


def check_gpus_taken(code: Code) -> Iterator[Finding]:
    """Yield a warning where two processes of a node select the same GPU, or one that the node does not have."""
    chosen = [(one, event, number) for one in code.followed for event, number in _devices(one)]
    gpus = code.facts.gpus
    if code.has_framework or not gpus:
        return
    for (one, event, number), (other, second, same) in itertools.combinations(chosen, 2):
        is_beside = one.process.node == other.process.node and one.process.local_rank != other.process.local_rank
        if is_beside and event.call is second.call and number == same and not event.visible:
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
            is_rank = number == one.process.rank
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
    return device if _is_number(device) and device >= 0 else None


def _first(one: Followed, name: str) -> Event | None:
    return next((event for event in one.events.values() if event.name == name), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)



def check_groups(code: Code) -> Iterator[Finding]:
    """Yield an error where the source of a collective is not in the group of the process that calls it."""
    for one in code.followed:
        for event in one.events.values():
            group, source = event.argument("group"), event.argument("src", 1 if event.last == "broadcast" else None)
            is_outside = isinstance(group, Group) and _is_number(source) and source not in group.ranks
            if is_outside and event.is_sure and one.process.rank in group.ranks:
                yield Finding(
                    "error",
                    "other-roots",
                    event.module.where(event.call),
                    f"src={source} is not in the group of rank {one.process.rank}, and src is a rank of the whole job",
                    "name the first rank of the group: dist.get_global_rank(group, 0); or pass group_src=0",
                )
                return


def check_nested(code: Code) -> Iterator[Finding]:
    """Yield an error where a process that a launcher started starts others, which join a group."""
    for event in (event for one in code.followed_all if one.is_nested for event in one.events.values()):
        starts = [call for call in event.path[:-1] if code.program.name_of(call.func, event.module) in PROCESSES]
        if event.name == INIT and starts:
            yield Finding(
                "error" if event.is_sure else "warning",
                "nested-spawn",
                event.module.where(starts[0]),
                f"Process would start more processes in each process that mode {code.facts.mode} starts",
                "use mode: spawn, or call the worker directly and read RANK and LOCAL_RANK from the environment",
            )
            return


def check_pickling(code: Code) -> Iterator[Finding]:
    """Yield an error where mp.spawn gets a function inside another one, as a decorator may return."""
    for event in (event for one in code.followed_all for event in one.events.values() if event.name == SPAWNS[0]):
        function, method = event.argument("fn", 0), event.argument("start_method", 5, "spawn")
        if isinstance(function, Inner) and method == "spawn":
            yield Finding(
                "error" if event.is_sure else "warning",
                "not-picklable",
                event.module.where(event.call),
                f"mp.spawn is given {function.name}, a function inside another one: Python cannot send it to the "
                "processes, and none starts",
                "define it at the top level of the module, and pass what it needs in args",
            )
            return
