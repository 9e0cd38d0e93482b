"""Loaders from which each process gets all data, or that DataLoader refuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import FSDP, Code, is_count, is_sharding
from jobsubmit.check.loading.divided import draws_samples, is_divided_before
from jobsubmit.check.loading.loaders import OF_RANK, calls_made, is_for_training, is_loader, is_sampler, sampler_of
from jobsubmit.check.loading.seeds import seeded_by_rank
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.functions import value_in_each_call
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_IS_PART_OF_VALIDATION = re.compile(r"subset\((?:\w+\.)*(?:val|test|eval|dev)")
_DIVIDES = re.compile(
    r"^(?:chunk|split|scatter|narrow|tensor_split)$|_by_rank|shard_batch|seq\w*parallel|context_parallel"
)
_DISTRIBUTED_OF_TIMM = 23  # the position of that argument of create_loader
_ALL_DATA = "each process gets all of the data from this loader: an epoch takes as long as with one process"
_ALL_DATA_IN_ORDER = (
    "each process gets all of the data from this loader, in the same order: all of them train on the same batches"
)
_OF_ALL = frozenset(["torch.utils.data.RandomSampler", "torch.utils.data.SequentialSampler"])
_IN_BATCHES = "torch.utils.data.BatchSampler"  # around another sampler
_AT_LEAST_ONE = ("gradient_accumulation_steps", "per_device_train_batch_size", "per_device_eval_batch_size")


def check_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader that gives each process all data, and what DataLoader refuses."""
    if code.world_size != 1:
        yield from _no_sampler(code)
        yield from _not_divided_by_timm(code)
        yield from _shuffled_sampler(code)
        yield from seeded_by_rank(code)
        yield from _empty_batch(code)
        yield from _no_steps(code)


def _no_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader from which each process of a data-parallel training gets all data."""
    if not (code.leaves_data_to_program and code.is_parallel):
        return
    shards = any(name.endswith(FSDP) and is_sharding(name) for _, _, name in code.reached.calls)
    shards = shards and not code.names_parts_of_a_model and not any(_DIVIDES.search(name) for name in code.names_in_use)
    if not (code.wraps_models or code.has_only_engine or shards):
        return
    loaders = [(module, call) for module, call, name in code.reached.calls if is_loader(code, name)]
    has_some = any(may_give_parts(code, call, module) for module, call in loaders)
    for module, call in loaders:
        is_alone = code.reached.is_sure(call, module) or not has_some or _is_surely_made(code, call)
        is_whole = is_alone and not may_give_parts(code, call, module) and not _is_dropped(code, call, module)
        is_whole = is_whole and _is_for_training(code, call, module) and _is_of_all_data(code, call, module)
        if is_whole and not is_divided_before(code, call, module) and not draws_samples(code, call, module):
            yield Finding(
                "warning",
                "no-sampler",
                module.where(call),
                _ALL_DATA_IN_ORDER if _is_in_one_order(code, call, module) else _ALL_DATA,
                "pass sampler=DistributedSampler(dataset) instead of shuffle, and call set_epoch",
            )
            return


def _is_for_training(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a loader, or any call of the function that makes it, may be for a training."""
    function = module.function_of(call)
    callers = code.program.calls_to(function, module) if function is not None else ()
    reached = [(home, one) for home, one in callers if code.reached.of(one, home)]
    is_of_others = bool(reached) and not any(is_for_training(one, home) for home, one in reached)
    return is_for_training(call, module) and not is_of_others


def _not_divided_by_timm(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader that timm makes for training, and does not divide unless it is asked to.

    Source: `create_loader` of timm 0.3 to 1.0, where `distributed` is False by default.
    """
    for module, call, name in code.reached.calls if code.wraps_models and code.is_parallel else ():
        if not (name.startswith("timm.data.") and name.endswith(".create_loader")) or hides_arguments(call):
            continue
        is_training, divides = argument(call, "is_training", 3), argument(call, "distributed", _DISTRIBUTED_OF_TIMM)
        is_divided_here = divides is not None and code.values.of(divides, module) is not False
        if is_training is not None and code.values.of(is_training, module) is True and not is_divided_here:
            yield Finding("warning", "no-sampler", module.where(call), _ALL_DATA, "pass distributed=True")
            return


def _is_surely_made(code: Code, call: ast.Call) -> bool:
    """Return whether all processes surely come to a call, by calls none of which is for a validation."""
    modules = code.program.modules.values()
    come = [
        any(
            event.call is call
            and event.is_sure
            and all(is_for_training(one, home) for one in event.path for home in modules if one in home.parents)
            for event in one_process.events.values()
        )
        for one_process in code.followed
    ]
    return bool(come) and all(come)


def _is_dropped(code: Code, loader: ast.Call, module: Module) -> bool:
    """Return whether a function returns a loader together with others, and no call of it uses that: `_, data = f()`."""
    store, function = module.parents.get(loader), module.function_of(loader)
    name = spelled(store.targets[0]) if isinstance(store, ast.Assign) else ""
    if function is None or not name:
        return False
    names = [node for node in walk(function) if isinstance(node, ast.Name) and node.id == name]
    returned = [(node, above) for node in names if isinstance(above := module.parents.get(node), ast.Tuple)]
    returned = [(node, above) for node, above in returned if isinstance(module.parents.get(above), ast.Return)]
    if len(returned) != 1 or len(names) != 2:  # noqa: PLR2004 - it is set once, and returned once
        return False
    number = returned[0][1].elts.index(returned[0][0])
    calls = [(home, call) for home, call in code.program.calls_to(function, module) if code.reached.of(call, home)]
    return bool(calls) and all(_is_ignored(home.parents.get(call), number) for home, call in calls)


def _is_ignored(statement: ast.AST | None, number: int) -> bool:
    """Return whether a statement takes several values, and calls that one `_` which has a number among them."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    names = target.elts if isinstance(target, ast.Tuple) else []
    return number < len(names) and spelled(names[number]) == "_"


def _is_in_one_order(code: Code, loader: ast.Call, module: Module) -> bool:
    """Return whether all processes get the data in the same order: not shuffled, or with the same seed."""
    given = argument(loader, "shuffle", 2)
    shuffle = code.values.of(given, module) if given is not None else False
    is_plain = not hides_arguments(loader) and not any("sampler" in str(one.arg) for one in loader.keywords)
    seeds = [code.values.of(call.args[0], home) for home, call in code.calls("torch.manual_seed") if call.args]
    is_seeded = shuffle is True and bool(seeds) and all(map(is_count, seeds))
    return is_plain and (shuffle is False or is_seeded)


def _shuffled_sampler(code: Code) -> Iterator[Finding]:
    """Yield an error for a loader that is given a sampler and is to shuffle as well, which DataLoader refuses."""
    has_hooks = code.uses("lightning", "pytorch_lightning")  # such as `train_dataloader()`, which it calls
    for module, call, name in calls_made(code) if has_hooks else code.reached.calls:
        is_known = is_loader(code, name)
        sampler = sampler_of(code, call, module) if is_known or _makes_given_loader(call, module) else None
        if sampler is None or not _shuffles(code, call, module):
            continue
        parts = [(home, one) for home, part in origins(code, sampler, module) for one in _choices(part)]
        made = [(home, one) for home, one in parts if is_sampler(code, home, one)]
        if made:
            is_sure = is_known and all(code.reached.is_sure(node, home) for home, node in (*made, (module, call)))
            yield Finding(
                "error" if is_sure else "warning",
                "sampler-and-shuffle",
                module.where(call),
                "shuffle=True beside a sampler: DataLoader refuses both",
                "remove shuffle: DistributedSampler shuffles by itself",
            )
            return


def _choices(node: ast.AST) -> Sequence[ast.AST]:
    """Return the expressions that a choice is between, or the one that is none."""
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def _makes_given_loader(call: ast.Call, module: Module) -> bool:
    """Return whether a call makes a loader of a class that its function is given: it has the arguments of one."""
    function = module.function_of(call)
    is_given = function is not None and spelled(call.func) in parameters(function)
    return is_given and {"dataset", "sampler", "shuffle"} <= {keyword.arg for keyword in call.keywords}


def _shuffles(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a loader is to shuffle, in each call of the function around it or in one."""
    shuffle, function = argument(call, "shuffle", 2), module.function_of(call)
    value = code.values.of(shuffle, module) if shuffle is not None else False
    if value is not UNKNOWN or function is None or not isinstance(shuffle, ast.Name):
        return value is True
    is_changed = (function, shuffle.id) in module.own_stores
    calls = code.program.calls_to(function, module) if not is_changed else ()
    given = ((home, given_for(one, function, shuffle.id)) for home, one in calls)
    values = [one is not None and code.values.of(one, home) is True for home, one in given]
    return bool(values) and all(values)


def _empty_batch(code: Code) -> Iterator[Finding]:
    """Yield an error for a batch that is divided among more processes than it has samples."""
    for module, call, name in code.reached.calls:
        size = argument(call, "batch_size", 1)
        if size is None or isinstance(size, ast.Constant) or not is_loader(code, name):
            continue
        if any(
            is_count(value) and not value
            for value in (code.values.of(size, module), *value_in_each_call(code.values, size, module))
        ):
            yield Finding(
                code.level_of(call, module),
                "empty-batch",
                module.where(call),
                f"{unparsed(size)} is 0 with {code.world_size} processes: DataLoader refuses that",
                "choose a batch size of at least one sample per process",
            )
            return


def _no_steps(code: Code) -> Iterator[Finding]:
    """Yield an error for numbers of Trainer that are 0 after a division by the number of processes."""
    for module, call, name in code.reached.calls:
        for given in call.keywords if name.endswith(".TrainingArguments") else ():
            value = code.values.of(given.value, module) if given.arg in _AT_LEAST_ONE else None
            if is_count(value) and not value:
                yield Finding(
                    code.level_of(call, module),
                    "empty-batch",
                    module.where(given.value),
                    f"{given.arg}={unparsed(given.value)} is 0 with {code.world_size} processes: Trainer divides by it",
                    "choose a number that is at least the number of processes by which it is divided",
                )
                return


def may_give_parts(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a loader has a sampler, and any but those that go through all data."""
    sampler = sampler_of(code, call, module)
    if sampler is None or _gets_none(code, call):
        return False
    parts = [(home, one) for home, part in origins(code, sampler, module) for one in _choices(part)]
    names = (code.program.name_of(one.func, home) for home, one in parts if isinstance(one, ast.Call))
    samplers = {name for name in names if "ampler" in name}
    inside = {name for name in samplers if name != _IN_BATCHES} or samplers
    return not inside or not inside <= _OF_ALL


def _gets_none(code: Code, call: ast.Call) -> bool:
    """Return whether the processes that were followed make a loader, and never with a sampler."""
    events = [event for one in code.followed[:1] for event in one.events.values() if event.call is call]
    given = [event.argument(*one) for event in events for one in (("sampler", 3), ("batch_sampler", 4))]
    return bool(events) and all(one is None for one in given)


def _is_of_all_data(code: Code, call: ast.Call, module: Module) -> bool:
    if hides_arguments(call) and {"sampler", "batch_sampler"} & code.texts:
        return False
    batch = argument(call, "batch_size", 1)
    dataset = argument(call, "dataset", 0)
    text = unparsed(dataset) if dataset is not None else ""
    if isinstance(dataset, ast.Name) and (assigned := code.values.assigned(dataset, module)) is not None:
        text += unparsed(assigned)
    is_iterable = batch is not None and code.values.of(batch, module) is None
    return not is_iterable and not OF_RANK.search(text) and not _IS_PART_OF_VALIDATION.search(text.lower())
