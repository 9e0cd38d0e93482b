"""Schedules of the learning rate that are made for the steps of one process with all data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import LOADERS, Code
from jobsubmit.check.loading.loaders import is_for_training, sampler_of
from jobsubmit.check.loading.sampler import may_give_parts
from jobsubmit.check.origins import origins, words_of
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.tree import factors_of, walk
from jobsubmit.common.finding import Finding

_MAKES_SCHEDULE = re.compile(r"sched|warmup|onecycle|cosine|anneal|\blr_", re.IGNORECASE)
_IS_RATE = re.compile(r"^(?:lr|learning_rate|new_lr|cur_lr|current_lr)$|\[['\"]lr['\"]\]$")
_SIZE = re.compile(r"batch_?size[\"'\])]*$", re.IGNORECASE)
_DIVISIONS = (ast.Div, ast.FloorDiv)
_OF_WORLD = re.compile(
    r"world|dist_|replica|procs|n_?gpus?\b|gpus|num_gpu|n_?procs?\b|nproc|num_proc|device_count|rank", re.IGNORECASE
)


def check_schedules(code: Code) -> Iterator[Finding]:
    """Yield a warning for a schedule whose steps are all batches of the data, though each process takes a part."""
    if code.world_size in (None, 1) or code.has_framework or not code.is_parallel:
        return
    divided = list(_divided_loaders(code))
    trained = [call for module, call, _ in divided if is_for_training(call, module)]
    sizes = dict(_sizes_of_parts(code, divided))
    for module, node, numbers in _schedules(code) if sizes or trained else ():
        for given in numbers:
            schedule = module.where(node)
            loader = _undivided_loader(code, given, module) if trained else None
            if loader is not None:
                yield _too_long(code, *loader, schedule, "use len() of the loader that trains")
                return
            divisions = list(_divisions(code, given, module))
            counted = next((one for one in divisions if _is_of_all(code, *one, sizes, trained)), None)
            if counted is not None and not any(
                one is not counted[1] and _is_by_world(code, one, home) for home, one in divisions
            ):
                hint = "use len() of the loader, or divide by the number of processes"
                yield _too_long(code, *counted, schedule, hint)
                return


def _schedules(code: Code) -> Iterator[tuple[Module, ast.expr | ast.stmt, list[ast.expr]]]:
    """Yield what makes a schedule, or computes a learning rate itself, with the numbers that it goes by."""
    for module, call, name in code.reached.calls:
        if _MAKES_SCHEDULE.search(name.rpartition(".")[2] or spelled(call.func)):
            yield module, call, [*call.args, *(keyword.value for keyword in call.keywords)]
    for module, node in code.program.of(ast.Assign):
        if _IS_RATE.search(unparsed(node.targets[0])) and code.reached.of(node, module):
            parts = [one for one in walk(node.value) if isinstance(one, ast.BinOp) and isinstance(one.op, _DIVISIONS)]
            yield module, node, [one.right for one in parts]


def _too_long(code: Code, module: Module, counted: ast.expr, schedule: str, hint: str) -> Finding:
    """Return the finding for a schedule whose number of steps is `counted`."""
    text = unparsed(counted)
    return Finding(
        "warning",
        "schedule-length",
        module.where(counted),
        f"{text} counts the batches of all processes, and each takes only its part of them: the schedule "
        f"({schedule}) is {code.world_size} times too long",
        hint,
    )


def _divided_loaders(code: Code) -> Iterator[tuple[Module, ast.Call, ast.expr]]:
    """Yield the loaders that give each process its part, with their samplers."""
    for module, call, name in code.reached.calls:
        sampler = sampler_of(code, call, module) if name in LOADERS else None
        if sampler is not None and "DistributedSampler(" in words_of(code, sampler, module):
            yield module, call, sampler


def _sizes_of_parts(code: Code, divided: list[tuple[Module, ast.Call, ast.expr]]) -> Iterator[tuple[str, str]]:
    """Yield the data sets of the divided loaders, with the size of their batches, as they are spelled."""
    for module, call, sampler in divided:
        data = argument(call, "dataset", 0)
        size = argument(call, "batch_size", 1) or _size_of_batches(code, sampler, module)
        if data is not None and size is not None:
            yield spelled(data), unparsed(size)


def _undivided_loader(code: Code, given: ast.expr, module: Module) -> tuple[Module, ast.Call] | None:
    """Return the `len(loader)` that a number comes from, if that loader has all data."""
    lengths = [
        (home, one)
        for home, part in origins(code, given, module)
        for one in walk(part)
        if isinstance(one, ast.Call) and spelled(one.func) == "len" and one.args and isinstance(one.args[0], ast.Call)
    ]
    for home, one in lengths:
        loaders = list(_loaders_made(code, one.args[0], home))  # type: ignore[arg-type] # it is a call
        statement = next((above for above in home.above(one) if isinstance(above, ast.stmt)), one)
        is_of_library = getattr(one.args[0].func, "attr", "") == "train_dataloader"  # type: ignore[attr-defined]
        if (loaders or is_of_library) and not _OF_WORLD.search(unparsed(statement)):
            if not any(may_give_parts(code, node, maker) for maker, node in loaders):
                return home, one
    return None


def _loaders_made(code: Code, call: ast.Call, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the loaders that a function makes, or all methods of the name that is called: `data.train_dataloader()`."""
    found = code.program.called(call, module)
    methods = code.program.methods.get(call.func.attr, ()) if isinstance(call.func, ast.Attribute) else ()
    makers = [found] if found is not None else [(home, method) for home, _, method in methods]
    for home, maker in makers:
        for node in walk(maker):
            if isinstance(node, ast.Call) and code.program.name_of(node.func, home) in LOADERS:
                yield home, node


def _size_of_batches(code: Code, sampler: ast.expr, module: Module) -> ast.expr | None:
    """Return the size of the batches that a BatchSampler makes."""
    made = (part for _, part in origins(code, sampler, module) if isinstance(part, ast.Call))
    sizes = (argument(one, "batch_size", 1) for one in made if spelled(one.func).endswith("BatchSampler"))
    return next(sizes, None)


def _divisions(code: Code, node: ast.expr, module: Module) -> Iterator[tuple[Module, ast.BinOp]]:
    """Yield the divisions that a number comes from."""
    for home, part in origins(code, node, module):
        for inner in walk(part):
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, _DIVISIONS):
                yield home, inner


def _is_by_world(code: Code, division: ast.BinOp, module: Module) -> bool:
    """Return whether a number is divided by the number of processes."""
    by = division.right
    return code.values.of(by, module) == code.world_size or _OF_WORLD.search(words_of(code, by, module)) is not None


def _is_of_all(code: Code, module: Module, division: ast.BinOp, sizes: dict[str, str], trained: list[ast.Call]) -> bool:
    """Return whether a division counts the batches of all data, with the size of the batches of one process."""
    counted = division.left
    if not isinstance(counted, ast.Call) or spelled(counted.func) != "len" or not counted.args:
        return False
    size = sizes.get(spelled(counted.args[0]))
    is_of_loader = getattr(counted.args[0], "attr", "") == "dataset" and _is_size_of_loader(
        code, division.right, trained
    )
    factors = map(unparsed, factors_of(division.right))
    if not is_of_loader and (size is None or size not in factors):
        return False
    whole = next((above for above in module.above(division) if isinstance(above, ast.stmt)), division)
    above = module.parents.get(division)
    is_divisor = isinstance(above, ast.BinOp) and above.right is division and isinstance(above.op, _DIVISIONS)
    return not is_divisor and not _OF_WORLD.search(f"{unparsed(whole)}\n{words_of(code, division.right, module)}")


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression: a function may get `args.batch_size` as its `batch_size`."""
    return spelled(node).rpartition(".")[2] or unparsed(node)


def _is_size_of_loader(code: Code, size: ast.expr, trained: list[ast.Call]) -> bool:
    """Return whether a number seems to be what each process takes at once: the program never divides such a number."""
    is_size = _SIZE.search(unparsed(size)) is not None
    own = [argument(call, "batch_size", 1) for call in trained]
    if any(one is not None and _last_name(one) != _last_name(size) for one in own):
        return False
    divided = (node.left for _, node in code.program.of(ast.BinOp) if isinstance(node.op, _DIVISIONS))
    sizes = (one for one in divided if isinstance(one, (ast.Name, ast.Attribute, ast.Subscript)))
    return is_size and not any(_SIZE.search(unparsed(one)) for one in sizes)
