"""Whether the program gives each process a part of the data itself, or has it draw samples of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.loading.loaders import OF_RANK, sampler_of
from jobsubmit.check.origins import is_seed_of_rank, origins, words_of
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk

# Words of programs that give each process its own part in another way.
_PARTS = frozenset(
    [
        *("IterableDataset", "IterDataPipe", "split_dataset_by_node", "split_by_node"),
        *("partition_dataset", "partition_dataset_classes"),
        *("DistributedBatchSampler", "DataPartitioner", "StreamingDataset", "WebDataset", "StatefulDataLoader"),
    ]
)
_MAKE_PARTS = ("collate_fn", "worker_init_fn")
_MOST_ENTERED = 60
_AT_RANDOM = re.compile(r"(?:^|\.)(?:rand(?:int|perm|n|range)?|random\w*|choices?|sample|shuffle|permutation|uniform)$")
_OF_PARTS = re.compile(r"split|chunk|part|shard", re.IGNORECASE)
_CHOOSES = re.compile(r"(?:^|\.)(?:rand(?:int|perm|range)|choices?|sample|shuffle|permutation)$")
_NOT_TRAINING = re.compile(r"val|test|eval|dev(?!ice)")
_MAKES_ORDER = ("__init__", "__iter__", "__next__")
_SHARDS = ("shard", "num_shards", "shard_id", "shard_index", "num_parts")
_SEEDERS = ("manual_seed", "seed", "seed_everything", "set_seed")


def is_divided(code: Code) -> bool:
    """Return whether the program divides its data by itself, as its names and the uses of its rank show."""
    is_cut = any(_cuts_by_rank(node) for _, node in code.program.of(ast.Subscript, ast.Call))
    return is_cut or bool(_PARTS & code.names_in_use) or _draws_own_order(code)


def is_divided_before(code: Code, loader: ast.Call, module: Module) -> bool:
    """Return whether a loader may get a part of the data that is another one in each process."""
    dataset = argument(loader, "dataset", 0)
    if dataset is None or hides_arguments(loader) or _is_given_from_elsewhere(code, dataset, module):
        return is_divided(code)
    return any(_names_part(node) or _cuts_by_rank(node) for node in _makes_data(code, loader, module))


def draws_samples(code: Code, loader: ast.Call, module: Module) -> bool:
    """Return whether each process draws samples of its own: as many as it wants, or those that its data set draws."""
    if not _draws_own_order(code):
        return False
    shuffle, sampler = argument(loader, "shuffle", 2), sampler_of(code, loader, module)
    is_shuffling = shuffle is not None and code.values.of(shuffle, module) is not False
    is_shuffling |= sampler is not None and "RandomSampler" in words_of(code, sampler, module)
    if is_shuffling:
        return not any(True for _ in _loops_over_epochs(code))
    nodes = _makes_data(code, loader, module)
    getters = [one for one in nodes if isinstance(one, ast.FunctionDef) and one.name == "__getitem__"]
    if any(not _reads_index(one) for one in getters):
        return any(isinstance(one, ast.Call) and _AT_RANDOM.search(spelled(one.func)) for one in nodes)
    makers = [one for one in nodes if isinstance(one, FUNCTIONS) and (one.name in _MAKES_ORDER or not _is_method(one))]
    return any(_chooses(inner) for one in makers for inner in walk(one))


def _reads_index(getter: ast.FunctionDef) -> bool:
    """Return whether a data set gives the sample that it is asked for."""
    names = [arg.arg for arg in getter.args.args[1:2]]
    uses = [one for one in walk(getter) if isinstance(one, ast.Name) and one.id in names]
    first = min(uses, key=lambda one: (one.lineno, isinstance(one.ctx, ast.Store)), default=None)
    return first is not None and isinstance(first.ctx, ast.Load)


def _is_method(function: Function) -> bool:
    return [arg.arg for arg in function.args.args[:1]] in (["self"], ["cls"])


def _chooses(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _CHOOSES.search(spelled(node.func)) is not None


def _makes_data(code: Code, loader: ast.Call, module: Module) -> set[ast.AST]:
    """Return what a loader's data is made of, and all of the functions and classes of the program that this enters."""
    given = [one for one in (argument(loader, "dataset", 0), *(argument(loader, name) for name in _MAKE_PARTS)) if one]
    waiting = [(home, node) for one in given for home, part in origins(code, one, module) for node in walk(part)]
    nodes = {node for _, node in waiting}
    entered: set[ast.AST] = set()
    while waiting:
        home, node = waiting.pop()
        found = _entered(code, node, home)
        if found is not None and found[1] not in entered and len(entered) < _MOST_ENTERED:
            entered.add(found[1])
            nodes.update(walk(found[1]))
            waiting += [(found[0], node) for node in walk(found[1])]
    return nodes


def _is_given_from_elsewhere(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether an expression is a parameter, or a field, of which nothing says what it is set to."""
    is_open = isinstance(node, (ast.Name, ast.Attribute))
    return is_open and all(isinstance(part, (ast.Name, ast.Attribute)) for _, part in origins(code, node, module))


def _entered(code: Code, node: ast.AST, module: Module) -> tuple[Module, ast.AST] | None:
    """Return the function or class of the program that a call enters, or that is handed on by its name."""
    if isinstance(node, ast.Call):
        return code.program.called(node, module)
    is_read = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    return code.program.definition(code.program.name_of(node, module)) if is_read else None


def _names_part(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) in _PARTS


def _cuts_by_rank(node: ast.AST) -> bool:
    """Return whether an expression takes a part by the rank of the process: `data[rank::size]`, `data.shard(…)`.

    Of a list of parts it takes one: `np.array_split(files, size)[rank]`.
    """
    if isinstance(node, ast.Subscript):
        is_part = isinstance(node.slice, ast.Slice) or _OF_PARTS.search(unparsed(node.value)) is not None
        return is_part and OF_RANK.search(unparsed(node.slice)) is not None
    if not isinstance(node, ast.Call):
        return False
    name = unparsed(node.func).rpartition(".")[2]
    if name == "shard" or any(keyword.arg in _SHARDS for keyword in node.keywords):
        return True
    by_rank = OF_RANK.search(" ".join(map(unparsed, (*node.args, *node.keywords)))) is not None
    return by_rank and ("seed" in name or name in ("slice", "islice", "range") or "ataset" in name)


def _draws_own_order(code: Code) -> bool:
    """Return whether each process seeds its random numbers otherwise, so that it shuffles otherwise."""
    calls = ((module, call) for module, call, _ in code.reached.calls if call.args)
    return any(
        spelled(call.func).rpartition(".")[2] in _SEEDERS and is_seed_of_rank(code, call.args[0], module)
        for module, call in calls
    )


def has_epochs(code: Code) -> bool:
    """Return whether a loop goes through the data several times: over the epochs, or over a loader without an end."""
    if any(True for _ in _loops_over_epochs(code)) or any(
        _begins_again(code, handler, module) for module, handler in code.program.of(ast.ExceptHandler)
    ):
        return True
    for _, node in code.program.of(ast.While):
        if isinstance(node.test, ast.Compare) or getattr(node.test, "value", False):
            loops = [inner for inner in walk(node) if isinstance(inner, (ast.For, ast.YieldFrom))]
            sources = [inner.iter if isinstance(inner, ast.For) else inner.value for inner in loops]
            if any("loader" in unparsed(source) for source in sources):
                return True
    return False


def _begins_again(code: Code, handler: ast.ExceptHandler, module: Module) -> bool:
    """Return whether the loader of the training begins again at its end: `except StopIteration: it = iter(loader)`."""
    calls = (node for one in handler.body for node in walk(one) if isinstance(node, ast.Call))
    is_of_end = handler.type is not None and unparsed(handler.type) == "StopIteration"
    begun = [unparsed(call.args[0]) for call in calls if unparsed(call.func) == "iter" and call.args]
    is_reached = bool(code.reached.of(handler.body[0], module))
    return is_of_end and is_reached and any(not _NOT_TRAINING.search(name.lower()) for name in begun)


def _loops_over_epochs(code: Code) -> Iterator[ast.For]:
    for module, node in code.program.of(ast.For):
        if "epoch" in unparsed(node.target) + unparsed(node.iter):
            if code.reached.of(node, module) and not _is_single_pass(code, module, node):
                yield node


def _is_single_pass(code: Code, module: Module, loop: ast.For) -> bool:
    if not isinstance(loop.iter, ast.Call) or unparsed(loop.iter.func) != "range":
        return False
    value = code.values.of(loop.iter, module)
    return isinstance(value, list) and len(value) <= 1
