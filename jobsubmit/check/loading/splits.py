"""Data that each rank splits into training and validation in another way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code, trains
from jobsubmit.check.origins import is_seed_of_rank, is_sent, origins, seen_through
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_TORCH_SEEDS = ("torch.manual_seed", "torch.random.manual_seed", "torch.seed")
_NUMPY_SEEDS = ("numpy.random.seed", "numpy.random.default_rng")
# What splits or shuffles data, with the functions that seed it.
_RANDOM_SPLITS = {
    "torch.utils.data.random_split": _TORCH_SEEDS,
    "torch.randperm": _TORCH_SEEDS,
    "random.shuffle": ("random.seed",),
    "random.sample": ("random.seed",),
    "numpy.random.shuffle": _NUMPY_SEEDS,
    "numpy.random.permutation": _NUMPY_SEEDS,
    "sklearn.model_selection.train_test_split": _NUMPY_SEEDS,
}
_SPLIT_BY_THEMSELVES = ("torch.utils.data.random_split", "sklearn.model_selection.train_test_split")
_SEEDS_ALL = ("seed_everything", "set_seed", "seed_all", "setup_seed", "set_random_seed", "fix_seed", "init_seeds")


def check_splits(code: Code) -> Iterator[Finding]:
    """Yield a warning if one rank tests on what another trains on."""
    if code.world_size != 1:
        yield from _split_by_rank(code)


def _split_by_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning where each rank splits the data by another seed: what one tests on, another trains on."""
    seeds = [(module, call) for module, call in code.calls("torch.manual_seed") if call.args]
    if not code.is_parallel or not (code.is_distributed or code.has_framework):
        return
    found = [*_split_with_generator(code), *_split_at_random(code), *_sampled_at_random(code)]
    yield from found[:1]
    if found or not seeds or not all(is_seed_of_rank(code, call.args[0], module) for module, call in seeds):
        return
    for module, call in code.calls("torch.utils.data.random_split"):
        if argument(call, "generator", 2) is None and not hides_arguments(call):
            yield Finding(
                "warning",
                "split-by-rank",
                module.where(call),
                f"each rank seeds with another number ({seeds[0][0].where(seeds[0][1])}), so each splits the data in "
                "another way: what one rank tests on, another trains on",
                "pass generator=torch.Generator().manual_seed(0) to random_split",
            )
            return


def _split_with_generator(code: Code) -> Iterator[Finding]:
    """Yield a warning where data is split by a generator, or a seed, that differs by rank."""
    for module, call, name in code.reached.calls:
        if name not in _SPLIT_BY_THEMSELVES or hides_arguments(call):
            continue
        generator, seed = argument(call, "generator", 2), argument(call, "random_state")
        seeds = [(module, seed)] if seed is not None else _seeds_of(code, generator, module)
        if seeds and all(is_seed_of_rank(code, one, home) for home, one in seeds):
            yield Finding(
                "warning",
                "split-by-rank",
                module.where(call),
                f"the seed of this split is another number on each rank ({unparsed(seeds[0][1])}), so each rank "
                "splits the data in another way: what one tests on, another trains on",
                "seed it with the same number on every rank",
            )
            return


def _seeds_of(code: Code, generator: ast.expr | None, module: Module) -> list[tuple[Module, ast.expr]]:
    """Return what a generator is seeded with: `torch.Generator().manual_seed(seed)`."""
    parts = origins(code, generator, module) if generator is not None else []
    return [
        (home, part.args[0])
        for home, part in parts
        if isinstance(part, ast.Call) and part.args and getattr(part.func, "attr", "") == "manual_seed"
    ]


def _split_at_random(code: Code) -> Iterator[Finding]:
    """Yield a warning where data is split by random numbers that nothing seeds, so that they differ by rank."""
    for module, call, whole in code.reached.calls:
        name = whole or _of_generator(code, call, module)
        source = _RANDOM_SPLITS.get(name)
        if source is None or _seeds_by_library(code) or hides_arguments(call):
            continue
        if any(argument(call, keyword) is not None for keyword in ("generator", "random_state")):
            continue
        if _is_for_one_step(call, module) or _is_sent(code, call, module):
            continue  # the data of each rank is another anyway
        seeds = [(home, one) for home, one, other in code.program.calls if other in source and one.args]
        if not whole:
            seeds = []  # numpy.random.seed() is not for a new generator
        cuts = [] if name in _SPLIT_BY_THEMSELVES else list(_cuts(call, module))
        makes_parts = any(cut.lower is None or cut.upper is not None or cut.step is not None for cut in cuts)
        if not (name in _SPLIT_BY_THEMSELVES or makes_parts):
            continue  # `order[n:]` alone is the rest of what was taken in batches
        is_in_two = name in _SPLIT_BY_THEMSELVES or {cut.lower is None for cut in cuts} == {True, False}
        if not seeds:
            why = f"nothing seeds {unparsed(call.func)}()"
        elif is_in_two and all(is_seed_of_rank(code, one.args[0], home) for home, one in seeds):
            why = f"each rank seeds with another number ({seeds[0][0].where(seeds[0][1])})"
        else:
            continue
        yield Finding(
            "warning",
            "split-by-rank",
            module.where(call),
            f"{why}, so each rank splits the data in another way: what one tests on, another trains on",
            f"seed it with the same number on every rank: {source[0]}(0)",
        )
        return


def _sampled_at_random(code: Code) -> Iterator[Finding]:
    """Yield a warning where pandas draws rows for one part, and the others are for another: `df.drop(train.index)`."""
    for module, call in code.program.calls_of_attribute.get("sample", ()) if code.program.imports("pandas") else ():
        is_drawn = argument(call, "frac") is not None and argument(call, "random_state") is None
        if not is_drawn or hides_arguments(call) or not code.reached.of(call, module) or _seeds_by_library(code):
            continue
        statement = module.parents.get(call)
        drawn = spelled(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        drops = (node for node in walk(module.scope_of(call)) if isinstance(node, ast.Call) and node.args)
        is_split = any(
            getattr(one.func, "attr", "") == "drop" and unparsed(one.args[0]) == f"{drawn}.index" for one in drops
        )
        seeds = [(home, one) for home, one, name in code.program.calls if name in _NUMPY_SEEDS and one.args]
        by_rank = bool(seeds) and all(is_seed_of_rank(code, one.args[0], home) for home, one in seeds)
        if is_split and (by_rank or not seeds):
            why = f"each rank seeds with another number ({seeds[0][0].where(seeds[0][1])})" if seeds else ""
            yield Finding(
                "warning",
                "split-by-rank",
                module.where(call),
                f"{why or f'nothing seeds {unparsed(call.func)}()'}, so each rank splits the data in another way: "
                "what one tests on, another trains on",
                "pass random_state=0",
            )
            return


def _is_sent(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a rank may send the others what a call has made, or shuffled: then all have the same parts."""
    statement = next((above for above in module.above(call) if isinstance(above, ast.stmt)), call)
    targets = statement.targets if isinstance(statement, ast.Assign) else call.args
    return any(is_sent(code, one, module) for one in targets)


def _is_for_one_step(call: ast.Call, module: Module) -> bool:
    """Return whether the loop around a call computes gradients itself, and in no loop inside it."""
    loop = next((above for above in module.above(call) if isinstance(above, (ast.For, ast.While))), None)
    inner = [node for node in walk(loop) if isinstance(node, (ast.For, ast.While)) and node is not loop] if loop else []
    return loop is not None and trains(loop) and not any(map(trains, inner))


def _seeds_by_library(code: Code) -> bool:
    """Return whether a function of a library may seed everything; those of the program show what they do."""
    own = {node.name for _, node in code.program.of(ast.FunctionDef)}
    return any(seed in code.names_in_use and seed not in own for seed in _SEEDS_ALL)


def _of_generator(code: Code, call: ast.Call, module: Module) -> str:
    """Return what numpy's function a method of a new generator without a seed is like: `default_rng().shuffle(x)`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    made = seen_through(owner, module)
    is_new = isinstance(made, ast.Call) and code.program.name_of(made.func, module) == "numpy.random.default_rng"
    is_seeded = is_new and bool(made.args or made.keywords)  # type: ignore[union-attr] # it is a call
    return f"numpy.random.{call.func.attr}" if is_new and not is_seeded else ""  # type: ignore[attr-defined] # it is an attribute


def _is_in_few(split: ast.Call) -> bool:
    """Return whether np.split() gets a few places to cut at: those that are computed may cut batches."""
    return len(split.args) > 1 and not isinstance(split.args[1], ast.Call)


def _cuts(call: ast.Call, module: Module) -> Iterator[ast.Slice]:
    """Yield how what a call shuffles is cut into parts afterwards: `files[:n]`, `files[rank::world]`.

    `files = files[:n]` makes no parts: nothing uses the others.
    """
    statement = module.parents.get(call)
    while isinstance(statement, (ast.Attribute, ast.Call, ast.Subscript)):  # torch.randperm(n)[:k].tolist()
        statement = module.parents.get(statement)
    names = [unparsed(arg) for arg in call.args if isinstance(arg, (ast.Name, ast.Attribute))]
    if isinstance(statement, ast.Assign):
        names += [unparsed(target) for target in statement.targets]
    scope = module.scope_of(call)
    if any(_gives_to_all(node, names) for node in walk(scope)):
        return
    for node in walk(scope):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.lineno >= call.lineno:
            if unparsed(node.value) in names and not _shortens(node, module) and not _is_of_pass(node, module):
                yield node.slice
        if isinstance(node, ast.Call) and unparsed(node.func).endswith("np.split") and _is_in_few(node):
            if unparsed(node.args[0]) in names and node.lineno >= call.lineno:
                yield from (ast.Slice(), ast.Slice(lower=ast.Constant(0)))  # it cuts into a first part and the rest


def _is_of_pass(part: ast.Subscript, module: Module) -> bool:
    """Return whether each pass of a loop takes the next part: `for i in range(0, n, 8): batch = data[i : i + 8]`."""
    above = module.above(part)
    loops = [one for one in above if isinstance(one, ast.For)]
    loops += [loop for one in above for loop in getattr(one, "generators", ())]
    counters = {unparsed(node) for loop in loops for node in walk(loop.target)}
    lower = part.slice.lower if isinstance(part.slice, ast.Slice) else None
    return lower is not None and any(unparsed(node) in counters for node in walk(lower))


def _gives_to_all(node: ast.AST, names: list[str]) -> bool:
    """Return whether a call gives all ranks what one of them has drawn."""
    is_broadcast = isinstance(node, ast.Call) and "broadcast" in unparsed(node.func)
    return is_broadcast and isinstance(node, ast.Call) and any(unparsed(one) in names for one in node.args)


def _shortens(part: ast.Subscript, module: Module) -> bool:
    """Return whether a variable keeps only the first part of itself: `files = files[:n]`."""
    cut, statement = part.slice, module.parents.get(part)
    return (
        isinstance(cut, ast.Slice)
        and cut.lower is cut.step is None
        and isinstance(statement, ast.Assign)
        and [unparsed(target) for target in statement.targets] == [unparsed(part.value)]
    )
