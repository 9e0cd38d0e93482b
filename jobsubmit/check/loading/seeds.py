"""Seeds with which each rank shuffles in another order what it then takes its part of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.loading.loaders import OF_RANK, calls_made, is_sampler
from jobsubmit.check.origins import is_seed_of_rank
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import Module, own_method, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters, position
from jobsubmit.common.finding import Finding

_SHUFFLES = re.compile(r"permutation|shuffle|randperm|\.sample$")
_SPLITTERS = ("split_dataset_by_node", "shard")
_SEEDS = ("manual_seed", "RandomState", "default_rng", "Random")


def seeded_by_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning for what divides data by rank and shuffles it before, in another order on each rank.

    That is a DistributedSampler, or a function of the program.
    """
    for module, call, _ in calls_made(code):
        seed = argument(call, "seed", 4) if is_sampler(code, module, call) else _seed_of_divider(code, call, module)
        if seed is not None and is_seed_of_rank(code, seed, module) and not _is_same_for_all(code, call):
            yield _with_other_seeds(seed, module)
            return
        if (seed := _seed_before_split(call, module)) is not None and is_seed_of_rank(code, seed, module):
            yield _with_other_seeds(seed, module)
            return
        home, own = _seed_of_own_sampler(code, call, module)
        if own is not None:
            yield _with_other_seeds(own, home)
            return


def _with_other_seeds(seed: ast.expr, module: Module) -> Finding:
    return Finding(
        "warning",
        "sampler-seed",
        module.where(seed),
        f"each rank shuffles with another seed ({unparsed(seed)}): the parts of the ranks overlap, and some samples "
        "are left out",
        "pass the same seed on every rank: what divides by rank must have the same order on all",
    )


def _seed_before_split(call: ast.Call, module: Module) -> ast.expr | None:
    """Return the seed of a shuffle if the same function divides the data after it: `split_dataset_by_node(data, …)`."""
    seed = argument(call, "seed", 0) if getattr(call.func, "attr", "") == "shuffle" else None
    if seed is None:
        return None
    statement = module.parents.get(call)
    shuffled = {spelled(target) for target in statement.targets} if isinstance(statement, ast.Assign) else set[str]()
    later = (one for one in walk(module.scope_of(call)) if isinstance(one, ast.Call) and position(one) > position(call))
    for one in later:
        named = [one.func.value] if isinstance(one.func, ast.Attribute) else []
        is_split = getattr(one.func, "attr", getattr(one.func, "id", "")) in _SPLITTERS
        if is_split and any(spelled(given) in shuffled for given in (*named, *one.args[:1])):
            return seed
    return None


def _seed_of_own_sampler(code: Code, call: ast.Call, module: Module) -> tuple[Module, ast.expr | None]:
    """Return the seed with the rank in it, if `__iter__` of a class of the program shuffles by it and then divides."""
    home, owner = code.program.definition(code.program.name_of(call.func, module)) or (module, None)
    method = own_method(owner, "__iter__") if isinstance(owner, ast.ClassDef) else None
    nodes = sorted((node for node in walk(method) if isinstance(node, ast.expr)), key=position) if method else []
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    seeds = [one.args[0] for one in calls if one.args and getattr(one.func, "attr", "") in _SEEDS]
    shuffles = [one for one in calls if _SHUFFLES.search(spelled(one.func))]
    cuts = [node for node in nodes if isinstance(node, ast.Slice) and node.step is not None]
    if not seeds or not shuffles or not cuts or "rank" not in unparsed(seeds[0]):
        return home, None
    is_divided_after = position(seeds[0]) < position(shuffles[0]) < position(cuts[0])
    return home, seeds[0] if is_divided_after and "rank" in unparsed(cuts[0]) else None


def _is_same_for_all(code: Code, call: ast.Call) -> bool:
    """Return whether the processes that were followed give a sampler the same seed."""
    events = [event for one in code.followed for event in one.events.values() if event.call is call]
    seeds = [event.argument("seed", 4, UNKNOWN) for event in events]
    return len(seeds) > 1 and all(type(seed) is int for seed in seeds) and len(set(seeds)) == 1


def _seed_of_divider(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return what a function gets as the seed of a permutation, from which it then takes the part of a rank."""
    found = code.program.definition(code.program.name_of(call.func, module))
    if found is None or not isinstance(found[1], ast.FunctionDef):
        return None
    names = parameters(found[1])
    nodes = list(walk(found[1]))
    slices = [unparsed(one.slice) for one in nodes if isinstance(one, ast.Subscript)]
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    shuffles = any(_SHUFFLES.search(spelled(one.func) or unparsed(one.func)) for one in calls)
    is_by_rank = any(OF_RANK.search(text) for text in slices) and any(OF_RANK.search(name) for name in names)
    seeds = [name for name in names if "seed" in name]
    return given_for(call, found[1], seeds[0]) if shuffles and is_by_rank and len(seeds) == 1 else None
