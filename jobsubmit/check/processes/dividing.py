"""How processes divide their data: by samplers, slices and numbers."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.processes.pairs import both
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import children
from jobsubmit.common.finding import Finding


def check_dividing(code: Code) -> Iterator[Finding]:
    """Yield a warning where samplers of two processes take the same part of the data, or shuffle it differently."""
    for one, other in itertools.combinations(code.followed, 2):
        for event, second in both(one, other, "DistributedSampler"):
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
            count = event.argument("num_replicas", 1)
            is_divided = count == one.process.world_size or (count != 1 and not _has_groups(one))
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


def _has_groups(one: Followed) -> bool:
    """Return whether some processes share a model, and may share data as well."""
    return any(event.last in ("new_group", "init_device_mesh") for event in one.events.values())


def check_parts_of_nodes(code: Code) -> Iterator[Finding]:
    """Yield a warning where data is divided among the processes of a node, and all nodes take the same parts."""
    three = _beside_and_beyond(code)
    if three is None or _has_groups(three[0]):
        return
    for module, node, parts in _divisions(code):
        own = [[one.values.get(part, UNKNOWN) for one in three] for part in parts]
        values = [*zip(*(each for each in own if all(type(value) is int for value in each)), strict=True)]
        if values and values[0] != values[1] and values[0] == values[2] and not _STAGES.search(_around(node, module)):
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
    """Return the words of the statement that a node is in, without its blocks, and the name of the function around."""
    statement = next((above for above in module.above(node) if isinstance(above, ast.stmt)), node)
    parts = [one for one in children(statement) if not isinstance(one, ast.stmt)] if _has_blocks(statement) else ()
    return " ".join((*map(unparsed, parts or [statement]), getattr(module.function_of(node), "name", ""))).lower()


def _has_blocks(statement: ast.AST) -> bool:
    return bool(getattr(statement, "body", None))


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
            case ast.Call() if (
                code.program.name_of(node.func, module) == "itertools.islice" and len(node.args) == _ISLICE
            ):
                yield module, node, [node.args[1]]


def _beside_and_beyond(code: Code) -> list[Followed] | None:
    """Return the first process, the next one on its node, and the first one of the second node."""
    by_place = {(one.process.node, one.process.local_rank): one for one in code.followed}
    places = [by_place.get(place) for place in ((0, 0), (0, 1), (1, 0))]
    found = [one for one in places if one is not None]
    return found if len(found) == len(places) else None


_ISLICE = 4  # arguments: what is divided, the first place, the end, and the step
