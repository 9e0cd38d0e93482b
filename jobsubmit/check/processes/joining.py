"""With which numbers processes join their group, and which rank they take for its source."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from jobsubmit.check.code import INIT, MESHES, Code, is_count
from jobsubmit.check.collectives.all_ranks import is_for_all
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.process import COLLECTIVES
from jobsubmit.check.interpreter.trace import Event, Group
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import unparsed
from jobsubmit.check.start.hardcoded import is_fallback
from jobsubmit.common.finding import Finding

MAKERS = ("accelerate.Accelerator", "deepspeed.init_distributed")  # they make the process group as well
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.DictComp, ast.GeneratorExp)
_RANK, _WORLD_SIZE = 4, 3  # the places of arguments of init_process_group


def check_joining(code: Code) -> Iterator[Finding]:
    """Yield an error where two processes join as the same rank, or as one of another number than the job has."""
    joins = [(one, _first(one, INIT)) for one in code.followed]
    for (one, event), (other, second) in itertools.combinations(joins, 2):
        if event is None or second is None or not (event.is_sure and second.is_sure):
            continue
        rank, other_rank = (found.argument("rank", _RANK) for found in (event, second))
        if is_count(rank) and rank == other_rank:
            said = f"process {one.process.rank} and process {other.process.rank} of the job both join as rank {rank}"
            hint = "leave rank and world_size out: they are read from the environment (RANK and WORLD_SIZE)"
            if not code.facts.has_launcher and one.process.local_rank == other.process.local_rank:
                said = f"the first processes of two nodes both join as rank {rank}: the nodes have the same ranks"
            if not code.facts.has_launcher:
                hint = (
                    'add the processes of the nodes before: rank = int(os.environ["NODE_RANK"]) * processes_per_node + '
                    "local_rank"
                )
            yield Finding("error", "same-ranks", event.module.where(event.call), said, hint)
            return
    yield from _overlapping(code, joins)
    for one, event in joins:
        if event is not None and is_fallback(code, event.call, event.module):
            continue
        size = event.argument("world_size", _WORLD_SIZE, 0) if event is not None else 0
        if event is not None and is_count(size) and size not in (0, -1, one.process.world_size):
            yield Finding(
                "error" if event.is_sure else "warning",
                "fixed-world-size",
                event.module.where(event.call),
                f"world_size is {size}, but the job has {one.process.world_size} processes",
                "leave rank and world_size out, which are in the environment; under mp.spawn, compute them",
            )
            return


def _overlapping(code: Code, joins: list[tuple[Followed, Event | None]]) -> Iterator[Finding]:
    """Yield an error where the first rank of the second node is one of those that the first node counts up to."""
    known = [(one.process, event, event.argument("rank", _RANK)) for one, event in joins if event is not None]
    of_first = [rank for process, _, rank in known if process.node == 0 and is_count(rank)]
    each = code.facts.nproc or code.processes or 0
    is_counting = len(of_first) > 1 and of_first[1] == of_first[0] + 1
    for process, event, rank in known if is_counting else ():
        if process.node and is_count(rank) and of_first[0] < rank < of_first[0] + each and event.is_sure:
            yield Finding(
                "error",
                "same-ranks",
                event.module.where(event.call),
                f"the first process of node {process.node} joins as rank {rank}, and node 0 has the ranks "
                f"{of_first[0]} to {of_first[0] + each - 1}: several processes have the same rank",
                'add the processes of the nodes before: rank = int(os.environ["NODE_RANK"]) * processes_per_node + '
                "local_rank",
            )
            return


def check_joining_twice(code: Code) -> Iterator[Finding]:
    """Yield an error where a process makes its group although it surely has one."""
    for one in code.followed:
        made: Event | None = None
        for event in one.events.values():
            if event.name.endswith("destroy_process_group"):
                made = None
            is_made = event.name in (INIT, *MESHES) or event.name in MAKERS
            if not is_made or not event.is_sure:
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


def _first(one: Followed, name: str) -> Event | None:
    return next((event for event in one.events.values() if event.name == name), None)


def check_groups(code: Code) -> Iterator[Finding]:
    """Yield an error where the source of a collective is another one in each process, or not in the group."""
    for one, other in itertools.combinations(code.followed, 2):
        for path, event in one.events.items():
            second = other.events.get(path)
            if second is None or event.last != "broadcast" or event.argument("group", 2) is not None:
                continue
            sources = [found.argument("src", 1) for found in (event, second)]
            is_sure = event.is_sure and second.is_sure
            differ = all(map(is_count, sources)) and sources[0] != sources[1]
            if differ and (is_sure or is_for_all(code, event.call, event.module)):
                yield Finding(
                    "error" if is_sure else "warning",
                    "other-roots",
                    event.module.where(event.call),
                    f"rank {one.process.rank} broadcasts from rank {sources[0]}, and rank {other.process.rank} from "
                    f"rank {sources[1]}: each waits for another one",
                    "name the same source on all ranks: src=0",
                )
                return
    yield from _called_by_others(code)
    for one in code.followed:
        for event in one.events.values():
            group, source = event.argument("group"), event.argument("src", 1 if event.last == "broadcast" else None)
            is_outside = isinstance(group, Group) and is_count(source) and source not in group.ranks
            if is_outside and event.is_sure and one.process.rank in group.ranks:
                yield Finding(
                    "error",
                    "other-roots",
                    event.module.where(event.call),
                    f"src={source} is not in the group of rank {one.process.rank}, and src is a rank of the whole job",
                    "name the first rank of the group: dist.get_global_rank(group, 0); or pass group_src=0",
                )
                return


def _called_by_others(code: Code) -> Iterator[Finding]:
    """Yield a warning for a collective of some ranks that the others call as well: for them, it does nothing."""
    made = [(module, call) for module, call in code.calls("torch.distributed.new_group")]
    several = len(made) > 1 or any(isinstance(above, _LOOPS) for module, call in made for above in module.above(call))
    for one in code.followed if not several else ():
        for event in one.events.values():
            group = event.argument("group")
            is_collective = event.name.startswith("torch.distributed.") and event.last in COLLECTIVES - {"barrier"}
            if not is_collective or not isinstance(group, Group) or one.process.rank in group.ranks:
                continue
            if _asks_for_group(event):
                continue
            if event.is_sure or is_for_all(code, event.call, event.module):
                yield Finding(
                    "warning",
                    "other-group",
                    event.module.where(event.call),
                    f"rank {one.process.rank} calls this {event.last}() as well, but its group has only "
                    f"{len(group.ranks)} of the {one.process.world_size} ranks: what the others have is left out",
                    "leave out `group`, or make the group of all ranks",
                )
                return


def _asks_for_group(event: Event) -> bool:
    """Return whether a condition around a collective is about its group: `if dist.get_rank(group) >= 0:`."""
    group = argument(event.call, "group")
    tests = (above.test for above in event.module.above(event.call) if isinstance(above, (ast.If, ast.IfExp)))
    return group is not None and any(unparsed(group) in unparsed(test) for test in tests)
