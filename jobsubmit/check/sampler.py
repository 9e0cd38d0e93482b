"""Which data each process trains on, and in which order: samplers, their epochs, and loaders without one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.modules import Module
from jobsubmit.common.finding import Finding

_NOT_TRAINING = re.compile(r"val|test|eval|dev|infer|predict|sample_loader|calib")
_SHUFFLE, _SAMPLER, _BATCH_SAMPLER = 3, 3, 4
# They give samplers their epochs themselves.
_SET_EPOCHS = ("accelerate", "composer", "fastai", "ignite", "lightning", "mmcv", "mmengine", "pytorch_lightning")
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
# Words of programs that give each process its own part in another way.
_PARTS = frozenset(
    [
        *("IterableDataset", "IterDataPipe", "split_dataset_by_node", "split_by_node"),
        *("DistributedBatchSampler", "DataPartitioner", "StreamingDataset", "WebDataset", "StatefulDataLoader"),
    ]
)
_SHARDS = ("shard", "num_shards", "shard_id", "shard_index", "num_parts")
_RANK = re.compile(r"\brank\b|_rank\b|\bworld|get_rank|process_index|num_replicas")


def check_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning if all processes train on the same data, or in the same order in every epoch."""
    if code.world_size == 1:
        return
    yield from _no_sampler(code)
    yield from _constant_epoch(code)
    yield from _no_epoch(code)


# ── epochs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _no_epoch(code: Code) -> Iterator[Finding]:
    if _sets_epochs(code) or code.program.imports(*_SET_EPOCHS) or not _has_epochs(code):
        return
    for module, call, name in code.reached.calls:
        if name.startswith("torch.") and name.endswith(".DistributedSampler") and _is_shuffling(code, call, module):
            yield Finding(
                "warning",
                "set-epoch",
                module.where(call),
                "set_epoch() is never called: the sampler uses the same order in every epoch",
                "call sampler.set_epoch(epoch) at the beginning of each epoch",
            )
            return


def _sets_epochs(code: Code) -> bool:
    """Return whether anything may give a sampler its epoch: a function that is named nowhere does not."""
    for module, node in code.program.of(ast.Attribute):
        if node.attr == "epoch" and isinstance(node.ctx, ast.Store):
            if "sampler" in ast.unparse(node.value):
                return True
        if node.attr == "set_epoch" and not _passes_on(node, module):
            if code.may_be_used(node, module):
                return True
    return code.looks_up_names


def _passes_on(node: ast.AST, module: Module) -> bool:
    """Return whether a method of the same name hands over the epoch that it gets: another has to call that one."""
    function = module.function_of(node)
    return function is not None and function.name == "set_epoch"


def _has_epochs(code: Code) -> bool:
    for module, node in code.program.of(ast.For, ast.While):
        if isinstance(node, ast.For) and "epoch" in ast.unparse(node.target) + ast.unparse(node.iter):
            if code.reached.of(node, module) and not _is_single_pass(code, module, node):
                return True
        if isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value:
            loops = [inner for inner in ast.walk(node) if isinstance(inner, (ast.For, ast.YieldFrom))]
            sources = [inner.iter if isinstance(inner, ast.For) else inner.value for inner in loops]
            if any("loader" in ast.unparse(source) for source in sources):
                return True
    return False


def _is_single_pass(code: Code, module: Module, loop: ast.For) -> bool:
    if not isinstance(loop.iter, ast.Call) or ast.unparse(loop.iter.func) != "range":
        return False
    value = code.values.of(loop.iter, module)
    return isinstance(value, list) and len(value) <= 1


def _is_shuffling(code: Code, call: ast.Call, module: Module) -> bool:
    node = argument(call, "shuffle", _SHUFFLE)
    shuffle = code.values.of(node, module)
    if hides_arguments(call) or shuffle is False or "epoch" in ast.unparse(argument(call, "seed") or ast.Pass()):
        return False
    return not _NOT_TRAINING.search(_spelled(call, module))


def _spelled(call: ast.Call, module: Module) -> str:
    """Return a call with the variable it is assigned to and the function it is in, in lower case."""
    statement = next((n for n in module.above(call) if isinstance(n, ast.stmt)), None)
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    function = next((n.name for n in module.above(call) if isinstance(n, ast.FunctionDef)), "")
    return f"{ast.unparse(call)} {target} {function}".lower()


def _constant_epoch(code: Code) -> Iterator[Finding]:
    calls = [
        (module, call)
        for module, call, _ in code.reached.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "set_epoch" and len(call.args) == 1
    ]
    if calls and all(isinstance(call.args[0], ast.Constant) for _, call in calls):
        module, call = calls[0]
        yield Finding(
            "warning",
            "set-epoch",
            module.where(call),
            f"set_epoch({ast.unparse(call.args[0])}) in every epoch: the sampler uses the same order each time",
            "pass the number of the epoch",
        )


# ── loaders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _no_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader from which each process of a data-parallel training gets all data."""
    if code.has_framework or code.world_size is None or _PARTS & code.names or _has_parts_by_rank(code):
        return
    if not any(is_ddp(name) for _, _, name in code.reached.calls):
        return
    loaders = [(module, call) for module, call, name in code.reached.calls if name in _LOADERS]
    has_some = any(_sampler_of(code, call, module) is not None for module, call in loaders)
    for module, call in loaders:
        is_alone = code.reached.is_sure(call, module) or not has_some
        if is_alone and _sampler_of(code, call, module) is None and not _NOT_TRAINING.search(_spelled(call, module)):
            if _is_of_all_data(code, call, module):
                yield Finding(
                    "warning",
                    "no-sampler",
                    module.where(call),
                    f"each of the {code.world_size} processes gets all of the data from this loader: an epoch takes as "
                    "long as with one process",
                    "pass sampler=DistributedSampler(dataset) instead of shuffle, and call set_epoch",
                )
                return


def _sampler_of(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return the sampler that a loader is given, unless it surely is None."""
    found = argument(call, "sampler", _SAMPLER) or argument(call, "batch_sampler", _BATCH_SAMPLER)
    return None if found is not None and code.values.of(found, module) is None else found


def _is_of_all_data(code: Code, call: ast.Call, module: Module) -> bool:
    if hides_arguments(call) and {"sampler", "batch_sampler"} & code.texts:
        return False
    batch = argument(call, "batch_size", 1)
    dataset = argument(call, "dataset", 0)
    text = ast.unparse(dataset) if dataset is not None else ""
    if isinstance(dataset, ast.Name) and (assigned := code.values.assigned(dataset, module)) is not None:
        text += ast.unparse(assigned)
    is_iterable = batch is not None and code.values.of(batch, module) is None
    return not is_iterable and not _RANK.search(text)


def _has_parts_by_rank(code: Code) -> bool:
    """Return whether anything is cut by rank, or each process draws its own order."""
    for _, node in code.program.of(ast.Subscript, ast.Call):
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
            if by_rank and (
                name in ("manual_seed", "seed", "seed_everything", "set_seed", "slice", "islice", "range")
                or "ataset" in name
            ):
                return True
    return False
