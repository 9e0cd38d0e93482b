"""What several processes share or divide: the data of a sampler, the files that they write."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from jobsubmit.check.checkpoints.saving import LOCAL_FOLDERS
from jobsubmit.check.code import Code, is_sharding
from jobsubmit.check.collectives.calls import BARRIERS
from jobsubmit.check.interpreter.machine import Followed
from jobsubmit.check.interpreter.process import is_optimizer
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.program.module import Module
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


def check_parts_of_nodes(code: Code) -> Iterator[Finding]:
    """Yield a warning where data is divided among the processes of a node, and all nodes take the same parts."""
    three = _beside_and_beyond(code)
    if three is None or _has_groups(three[0]):
        return
    for module, node, parts in _divisions(code):
        values = [[one.values.get(part, UNKNOWN) for part in parts] for one in three]
        is_known = all(type(value) is int for own in values for value in own)
        if is_known and values[0] != values[1] and values[0] == values[2] and not _STAGES.search(_around(node, module)):
            yield Finding(
                "warning",
                "part-of-node",
                module.where(node),
                f"the data is divided by the local rank: all {code.facts.nodes} nodes take the same parts",
                "divide it by the rank among all processes: RANK and WORLD_SIZE",
            )
            return


_STAGES = re.compile(r"copy|stage|download|extract|unpack|untar|cache|fetch|cpu|affinity|numa|core|gpu|device|visible")


def _around(node: ast.AST, module: Module) -> str:
    """Return the words of the statement that a node is in, and the name of the function around."""
    statement = next((above for above in module.above(node) if isinstance(above, ast.stmt)), node)
    return f"{ast.unparse(statement)} {getattr(module.function_of(node), 'name', '')}".lower()


def _divisions(code: Code) -> Iterator[tuple[Module, ast.AST, list[ast.expr]]]:
    """Yield what divides data, with the numbers that decide which part is taken: `rows[i::n]`, `index % n == i`."""
    for module, node in code.program.of(ast.Subscript, ast.Compare, ast.Call):
        match node:
            case ast.Subscript(slice=ast.Slice() as part, ctx=ast.Load()):
                bounds = [one for one in (part.lower, part.upper, part.step) if one is not None]
                yield module, node, [one for one in bounds if not isinstance(one, ast.Constant)]
            case ast.Compare(left=ast.BinOp(op=ast.Mod()), ops=[ast.Eq() | ast.NotEq()], comparators=[own]):
                yield module, node, [own]
            case ast.Call(func=ast.Attribute(attr="shard"), args=[_, _]):
                yield module, node, node.args
            case ast.Call() if code.program.name_of(node.func, module) == "itertools.islice" and len(node.args) == _ISLICE:
                yield module, node, [node.args[1]]


def _beside_and_beyond(code: Code) -> list[Followed] | None:
    """Return the first process, the next one on its node, and the first one of the second node."""
    by_place = {(one.process.node, one.process.local_rank): one for one in code.followed}
    places = [by_place.get(place) for place in ((0, 0), (0, 1), (1, 0))]
    found = [one for one in places if one is not None]
    return found if len(found) == len(places) else None


_ISLICE = 4  # arguments: what is divided, the first place, the end, and the step


def check_downloads_beyond(code: Code) -> Iterator[Finding]:
    """Yield a warning where only the first process downloads data, to the disk of its node."""
    for one, other in ((code.followed[0], each) for each in code.followed[1:] if each.process.node != 0):
        for event in one.events.values():
            second = other.events.get(event.path)
            root = event.argument("root", 0, UNKNOWN)
            is_on_node = isinstance(root, (str, PurePosixPath)) and str(root).startswith(LOCAL_FOLDERS)
            is_alone = second is None or second.argument("download") is False
            if event.argument("download") is True and is_on_node and is_alone and event.is_sure:
                yield Finding(
                    "warning",
                    "staged-by-one",
                    event.module.where(event.call),
                    f"only rank 0 puts data into {root}, on the disk of its node: no other node has it",
                    "let the first process of each node do it: if local_rank == 0",
                )
                return


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


def check_optimizers_first(code: Code) -> Iterator[Finding]:
    """Yield a warning where the only optimizer is made before the model is sharded."""
    for one in code.followed[:1]:
        events = [event for event in one.events.values() if event.is_sure]
        made = [event for event in events if is_optimizer(event.name)]
        sharded = [event for event in events if is_sharding(event.name)]
        if len(made) == 1 and sharded and events.index(made[0]) < events.index(sharded[0]):
            yield Finding(
                "warning",
                "optimizer-too-early",
                made[0].module.where(made[0].call),
                f"the optimizer gets the parameters of the model before {ast.unparse(sharded[0].call.func)} "
                f"({sharded[0].module.where(sharded[0].call)}) replaces them: it would update others",
                "shard the model first, then make the optimizer",
            )


def _both(one: Followed, other: Followed, name: str) -> Iterator[tuple[Event, Event]]:
    """Yield the calls by the last part of a name that both of two processes surely make."""
    for path, event in one.events.items():
        second = other.events.get(path)
        if event.last == name and second is not None and event.is_sure and second.is_sure:
            yield event, second
