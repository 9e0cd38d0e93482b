"""Loaders from which each process gets all data, or that DataLoader refuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import LOADERS, Code, is_count, trains
from jobsubmit.check.origins import is_seed_of_rank, origins
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.functions import value_in_each_call
from jobsubmit.check.program.module import Module, class_around, own_method, spelled
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters, position
from jobsubmit.common.finding import Finding

_NOT_TRAINING = re.compile(r"val|test|eval|dev|infer|predict|sample_loader|calib")
_OF_VALIDATION = re.compile(r"^(?!.*Train)(?:.*[a-z])?(?:Val|Valid|Validation|Test|Eval|Evaluation)(?![a-z])")
_IS_PART_OF_VALIDATION = re.compile(r"subset\((?:\w+\.)*(?:val|test|eval|dev)")
_SAMPLER, _BATCH_SAMPLER, _DROP_LAST = 3, 4, 8  # the positions of the arguments of DataLoader
# Words of programs that give each process its own part in another way.
_PARTS = frozenset(
    [
        *("IterableDataset", "IterDataPipe", "split_dataset_by_node", "split_by_node"),
        *("partition_dataset", "partition_dataset_classes"),
        *("DistributedBatchSampler", "DataPartitioner", "StreamingDataset", "WebDataset", "StatefulDataLoader"),
    ]
)
_ALL_DATA = "each process gets all of the data from this loader: an epoch takes as long as with one process"
_ALL_DATA_IN_ORDER = (
    "each process gets all of the data from this loader, in the same order: all of them train on the same batches"
)
_OF_ALL = frozenset(["torch.utils.data.RandomSampler", "torch.utils.data.SequentialSampler"])
_SHARDS = ("shard", "num_shards", "shard_id", "shard_index", "num_parts")
_SHUFFLES = re.compile(r"permutation|shuffle|randperm|\.sample$")
_AT_LEAST_ONE = ("gradient_accumulation_steps", "per_device_train_batch_size", "per_device_eval_batch_size")
_SPLITTERS = ("split_dataset_by_node", "shard")
_SEEDERS = ("manual_seed", "seed", "seed_everything", "set_seed")
_SEEDS = ("manual_seed", "RandomState", "default_rng", "Random")
_RANK = re.compile(r"\brank\b|_rank\b|\bworld|get_rank|process_index|num_replicas")


def check_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader that gives each process all data, and what DataLoader refuses."""
    if code.world_size != 1:
        yield from _no_sampler(code)
        yield from _shuffled_sampler(code)
        yield from _seeded_by_rank(code)
        yield from _empty_batch(code)
        yield from _no_steps(code)


def is_loader(code: Code, name: str) -> bool:
    """Return whether a class is DataLoader, or one of the program that is based on it and takes what it takes."""
    found = code.program.definition(name) if name not in LOADERS else None
    if found is None or not isinstance(found[1], ast.ClassDef):
        return name in LOADERS
    maker = own_method(found[1], "__init__")
    takes_all = maker is None or (maker.args.vararg is not None and maker.args.kwarg is not None)
    return takes_all and any(code.program.name_of(base, found[0]) in LOADERS for base in found[1].bases)


def is_divided(code: Code) -> bool:
    """Return whether the program divides its data by itself, as its names and the uses of its rank show."""
    return bool(_PARTS & code.names) or _has_parts_by_rank(code)


def _no_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader from which each process of a data-parallel training gets all data."""
    if not (code.leaves_data_to_program and code.is_parallel) or is_divided(code):
        return
    if not (code.wraps_models or code.has_only_engine):
        return
    loaders = [(module, call) for module, call, name in code.reached.calls if is_loader(code, name)]
    has_some = any(may_give_parts(code, call, module) for module, call in loaders)
    for module, call in loaders:
        is_alone = code.reached.is_sure(call, module) or not has_some or _is_surely_made(code, call)
        is_whole = is_alone and not may_give_parts(code, call, module) and not _is_dropped(code, call, module)
        if is_whole and is_for_training(call, module) and _is_of_all_data(code, call, module):
            yield Finding(
                "warning",
                "no-sampler",
                module.where(call),
                _ALL_DATA_IN_ORDER if _is_in_one_order(code, call, module) else _ALL_DATA,
                "pass sampler=DistributedSampler(dataset) instead of shuffle, and call set_epoch",
            )
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
    for module, call, name in _calls_made(code) if has_hooks else code.reached.calls:
        is_known = is_loader(code, name)
        sampler = sampler_of(code, call, module) if is_known or _makes_given_loader(call, module) else None
        if sampler is None or not _shuffles(code, call, module):
            continue
        parts = [(home, one) for home, part in origins(code, sampler, module) for one in _choices(part)]
        made = [(home, one) for home, one in parts if _is_sampler(code, home, one)]
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


def _calls_made(code: Code) -> Iterator[tuple[Module, ast.Call, str]]:
    """Yield the calls that are reached, with those that a framework may make: of `train_dataloader()`."""
    for module, call, name in code.program.calls if code.has_framework else code.reached.calls:
        if code.reached.of(call, module) or code.may_be_used(call, module):
            yield module, call, name


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


def _seeded_by_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning for what divides data by rank and shuffles it before, in another order on each rank.

    That is a DistributedSampler, or a function of the program.
    """
    for module, call, _ in _calls_made(code):
        seed = argument(call, "seed", 4) if _is_sampler(code, module, call) else _seed_of_divider(code, call, module)
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
        f"each rank shuffles with another seed ({ast.unparse(seed)}): the parts of the ranks overlap, and some samples "
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
    if not seeds or not shuffles or not cuts or "rank" not in ast.unparse(seeds[0]):
        return home, None
    is_divided_after = position(seeds[0]) < position(shuffles[0]) < position(cuts[0])
    return home, seeds[0] if is_divided_after and "rank" in ast.unparse(cuts[0]) else None


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
    slices = [ast.unparse(one.slice) for one in nodes if isinstance(one, ast.Subscript)]
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    shuffles = any(_SHUFFLES.search(spelled(one.func) or ast.unparse(one.func)) for one in calls)
    is_by_rank = any(_RANK.search(text) for text in slices) and any(_RANK.search(name) for name in names)
    seeds = [name for name in names if "seed" in name]
    return given_for(call, found[1], seeds[0]) if shuffles and is_by_rank and len(seeds) == 1 else None


def _is_sampler(code: Code, module: Module, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and code.program.name_of(node.func, module).endswith("DistributedSampler")


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
                f"{ast.unparse(size)} is 0 with {code.world_size} processes: DataLoader refuses that",
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
                    f"{given.arg}={ast.unparse(given.value)} is 0 with {code.world_size} processes: Trainer divides by "
                    "it",
                    "choose a number that is at least the number of processes by which it is divided",
                )
                return


def sampler_of(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return the sampler that a loader is given, unless it surely is None."""
    found = argument(call, "sampler", _SAMPLER) or argument(call, "batch_sampler", _BATCH_SAMPLER)
    return None if found is not None and code.values.of(found, module) is None else found


def may_give_parts(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a loader has a sampler, and any but those that go through all data."""
    sampler = sampler_of(code, call, module)
    if sampler is None:
        return False
    parts = [(home, one) for home, part in origins(code, sampler, module) for one in _choices(part)]
    names = (code.program.name_of(one.func, home) for home, one in parts if isinstance(one, ast.Call))
    samplers = {name for name in names if "ampler" in name}
    return not samplers or not samplers <= _OF_ALL


def _is_of_all_data(code: Code, call: ast.Call, module: Module) -> bool:
    if hides_arguments(call) and {"sampler", "batch_sampler"} & code.texts:
        return False
    batch = argument(call, "batch_size", 1)
    dataset = argument(call, "dataset", 0)
    text = ast.unparse(dataset) if dataset is not None else ""
    if isinstance(dataset, ast.Name) and (assigned := code.values.assigned(dataset, module)) is not None:
        text += ast.unparse(assigned)
    is_iterable = batch is not None and code.values.of(batch, module) is None
    return not is_iterable and not _RANK.search(text) and not _IS_PART_OF_VALIDATION.search(text.lower())


def _has_parts_by_rank(code: Code) -> bool:
    """Return whether anything is cut by rank, or each process draws its own order."""
    for module, node in code.program.of(ast.Subscript, ast.Call):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and _RANK.search(ast.unparse(node.slice))
        ):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "shard" or any(keyword.arg in _SHARDS for keyword in node.keywords):
                return True
            by_rank = bool(_RANK.search(" ".join(map(ast.unparse, node.args))))
            if by_rank and ("seed" in name or name in ("slice", "islice", "range") or "ataset" in name):
                return True
            if name in _SEEDERS and node.args and is_seed_of_rank(code, node.args[0], module):
                return True
    return False


def is_for_training(call: ast.Call, module: Module) -> bool:
    """Return whether no word of a call, its variable, its function and its class says that it is for a validation."""
    above, owner = module.function_of(call), class_around(call, module)
    if above is not None and any("no_grad" in ast.unparse(one) for one in above.decorator_list):
        return False
    if owner is not None and _OF_VALIDATION.search(owner.name) and not trains(owner):
        return False
    function = _function_around(call, module)
    last = argument(call, "drop_last", _DROP_LAST)
    own = spelled_with_target(call, module).removesuffix(function)
    own = own.replace(ast.unparse(last).lower(), "") if last is not None else own  # `mode != "test"`: it is for any
    return not _NOT_TRAINING.search(own if "train" in function else own + function)


def spelled_with_target(call: ast.Call, module: Module) -> str:
    """Return a call with the variable it is assigned to and the function it is in, in lower case."""
    statement = next((n for n in module.above(call) if isinstance(n, ast.stmt)), None)
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    return f"{ast.unparse(call)} {target} {_function_around(call, module)}".lower()


def _function_around(node: ast.AST, module: Module) -> str:
    return next((one.name.lower() for one in module.above(node) if isinstance(one, ast.FunctionDef)), "")
