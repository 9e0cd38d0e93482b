"""What several processes share or divide: the data of a sampler, the files that they write."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import BARRIERS
from jobsubmit.check.interpreter.machine import Followed
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.common.finding import Finding


_SHARED = re.compile(r"shared|nfs|lustre|gpfs|efs|fsx|sfs")  # a folder that all nodes have, by its name


def check_dividing(code: Code) -> Iterator[Finding]:
    """Yield a warning where samplers of two processes take the same part of the data, or shuffle it differently."""
    for one, other in itertools.combinations(code.followed, 2):
        for event, second in _both(one, other, "DistributedSampler"):
            seeds = [found.argument("seed", 4, 0) for found in (event, second)]
            if all(isinstance(seed, int) for seed in seeds) and seeds[0] != seeds[1]:
                yield Finding(
                    "warning",
                    "sampler-seed",
                    event.module.where(event.call),
                    f"each rank shuffles with another seed ({seeds[0]}, {seeds[1]}): the parts of the ranks overlap, "
                    "and some samples are left out",
                    "use the same seed on all ranks",
                )
                return
            is_divided = event.argument("num_replicas", 1) != 1 and not _has_groups(one)
            ranks = [found.argument("rank", 2) for found in (event, second)]
            if isinstance(ranks[0], int) and ranks[0] == ranks[1] and is_divided:
                yield Finding(
                    "warning",
                    "part-of-node",
                    event.module.where(event.call),
                    f"process {one.process.rank} and process {other.process.rank} of the job take the same part of the "
                    f"data: rank={ranks[0]}",
                    "leave num_replicas and rank out: the sampler takes them from the process group",
                )
                return


def check_writing(code: Code) -> Iterator[Finding]:
    """Yield a warning where another process saves the same file as the first."""
    for one, other in ((code.followed[0], each) for each in code.followed[1:]):
        is_beside = one.process.node == other.process.node
        for event, second in _both(one, other, "save") if _waits(one) == _waits(other) else ():
            path = event.argument("f", 1, UNKNOWN)
            is_same = path is not UNKNOWN and str(path) == str(second.argument("f", 1, UNKNOWN))
            is_shared = is_beside or (str(path).startswith("/") and _SHARED.search(str(path)))
            if event.name == second.name == "torch.save" and is_same and is_shared and path is not None:
                yield Finding(
                    "warning",
                    "saved-by-all",
                    event.module.where(event.call),
                    "each process writes the same file: it may be damaged"
                    if is_beside
                    else f"the first process of each of the {code.facts.nodes} nodes writes the same file, if they share "
                    "the folder: it may be damaged",
                    "save it on rank 0 only: if dist.get_rank() == 0: torch.save(…)",
                )
                return


def _waits(one: Followed) -> set[tuple[ast.Call, ...]]:
    """Return the barriers that a process comes to: where these differ, one process waits until another has written."""
    return {path for path, event in one.events.items() if event.last in BARRIERS}


def _has_groups(one: Followed) -> bool:
    """Return whether some processes share a model, and may share data as well."""
    return any(event.last in ("new_group", "init_device_mesh") for event in one.events.values())


def _both(one: Followed, other: Followed, name: str) -> Iterator[tuple[Event, Event]]:
    """Yield the calls by the last part of a name that both of two processes surely make."""
    for path, event in one.events.items():
        second = other.events.get(path)
        if event.last == name and second is not None and event.is_sure and second.is_sure:
            yield event, second
