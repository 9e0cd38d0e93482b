"""Which data each process trains on, and in which order: samplers, their epochs, and loaders without one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import INIT, INIT_RPC, Code, is_count, is_ddp
from jobsubmit.check.origins import is_seed_of_rank, last_value, origins, words_of
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.modules import Module, spelled
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_NOT_TRAINING = re.compile(r"val|test|eval|dev|infer|predict|sample_loader|calib")
_DEEPEST = 3
_SHUFFLE, _SAMPLER, _BATCH_SAMPLER = 3, 3, 4
# They give samplers their epochs themselves.
_SET_EPOCHS = ("accelerate", "composer", "fastai", "ignite", "lightning", "mmcv", "mmengine", "pytorch_lightning")
LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
# Words of programs that give each process its own part in another way.
_PARTS = frozenset(
    [
        *("IterableDataset", "IterDataPipe", "split_dataset_by_node", "split_by_node"),
        *("DistributedBatchSampler", "DataPartitioner", "StreamingDataset", "WebDataset", "StatefulDataLoader"),
    ]
)
_PART_NUMBERS = ("rank", "shard_id", "shard_index", "shard", "index")
_PART_COUNTS = ("num_replicas", "num_shards", "world_size", "num_parts")
_OF_NODE = re.compile(r"local_rank|LOCAL_RANK|LOCAL_WORLD_SIZE|NPROC_PER_NODE|device_count|\blocal_world|\bdevice_id\b")
_OF_ALL = re.compile(
    r"\bRANK\b|\brank\b|get_rank|get_world_size|WORLD_SIZE|nnodes|(?:node|machine|global)_rank|NODE_RANK|\bworld_size\b"
)
_RANKS = re.compile(
    r"rank|world|shard_(?!path|dir|file)|replica|process_(?:index|count)|split_(?:data|by)", re.IGNORECASE
)
_DIVIDES = re.compile(rf"{_RANKS.pattern}|shard_|islice|split_|::", re.IGNORECASE)
_NODES = re.compile(
    r"(?:^|[._])(?:n_?nodes|num_nodes|nodes|node|node_rank|node_id|machine_rank|num_machines|group_rank)$"
)
_DIVIDERS = frozenset(["split_dataset_by_node", "split_by_node", "worker_init_fn", "DataPartitioner"])
# They make groups of processes that share a model.
_GROUPS = frozenset(
    [
        *("new_group", "new_subgroups", "init_device_mesh", "DeviceMesh", "device_mesh", "parallelize_module"),
        *("initialize_model_parallel", "model_parallel_size", "tensor_parallel_size"),
    ]
)
_SHARDS = ("shard", "num_shards", "shard_id", "shard_index", "num_parts")
_RANK = re.compile(r"\brank\b|_rank\b|\bworld|get_rank|process_index|num_replicas")


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


def check_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning if all processes train on the same data, or in the same order in every epoch."""
    if code.world_size == 1:
        return
    yield from _no_sampler(code)
    yield from _undivided(code)
    yield from _shuffled_sampler(code)
    yield from _part_of_node(code)
    yield from _empty_batch(code)
    yield from _split_by_rank(code)
    yield from _part_by_hash(code)
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
    if calls and all(_is_same_each_time(call.args[0], module) for module, call in calls):
        module, call = calls[0]
        yield Finding(
            "warning",
            "set-epoch",
            module.where(call),
            f"set_epoch({ast.unparse(call.args[0])}) in every epoch: the sampler uses the same order each time",
            "pass the number of the epoch",
        )


def _is_same_each_time(given: ast.expr, module: Module) -> bool:
    """Return whether an argument is fixed, or a variable that no loop around it changes."""
    if isinstance(given, ast.Constant):
        return True
    function = module.function_of(given)
    if not isinstance(given, ast.Name) or (function is not None and given.id in parameters(function)):
        return False
    stores = module.stores.get((module.scope_of(given), given.id), ())
    loops = [above for above in module.above(given) if isinstance(above, (ast.For, ast.While))]
    return bool(stores and loops) and not any(loop in set(module.above(store)) for store in stores for loop in loops)


# ── loaders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _no_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loader from which each process of a data-parallel training gets all data."""
    if code.has_framework or not code.is_parallel or _PARTS & code.names or _has_parts_by_rank(code):
        return
    if not code.wraps_models:
        return
    loaders = [(module, call) for module, call, name in code.reached.calls if name in LOADERS]
    has_some = any(_sampler_of(code, call, module) is not None for module, call in loaders)
    for module, call in loaders:
        is_alone = code.reached.is_sure(call, module) or not has_some
        if is_alone and _sampler_of(code, call, module) is None and not _NOT_TRAINING.search(_spelled(call, module)):
            if _is_of_all_data(code, call, module):
                yield Finding(
                    "warning",
                    "no-sampler",
                    module.where(call),
                    "each process gets all of the data from this loader: an epoch takes as long as with one process",
                    "pass sampler=DistributedSampler(dataset) instead of shuffle, and call set_epoch",
                )
                return


def _undivided(code: Code) -> Iterator[Finding]:
    """Yield a warning for a stream of data that knows of no other processes, and that each of them reads as a whole."""
    if code.has_framework or not code.is_parallel or not code.wraps_models:
        return
    streams = {
        f"{module.name}.{node.name}"
        for module, node in code.program.of(ast.ClassDef)
        if any(ast.unparse(base).endswith("IterableDataset") for base in node.bases)
        and not _is_divided(code, node, module)
    }
    if not streams or _DIVIDERS & code.names:
        return
    for module, call, name in code.reached.calls:
        used = _spelled(call, module)
        if (
            name in streams
            and not hides_arguments(call)
            and not _DIVIDES.search(used)
            and not _NOT_TRAINING.search(used)
        ):
            yield Finding(
                "warning",
                "no-sampler",
                module.where(call),
                "each process reads all of this stream: an epoch takes as long as with one process",
                "in __iter__, let each rank skip the items of the others; with several workers, divide among them, too",
            )
            return


def _is_divided(code: Code, stream: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether a stream may leave items to other processes, itself or by what it uses of the program.

    Not only to other workers of its loader.
    """
    text = ast.unparse(stream)
    if (_RANKS if "get_worker_info" in text else _DIVIDES).search(text) is not None:
        return True
    names = {code.program.name_of(node, module) for node in ast.walk(stream) if isinstance(node, ast.Name)}
    used = (code.program.definition(name) for name in names) if depth < _DEEPEST else ()
    return any(one is not None and _is_divided(code, one[1], one[0], depth + 1) for one in used)


def _shuffled_sampler(code: Code) -> Iterator[Finding]:
    """Yield an error for a loader that is given a sampler and is to shuffle as well, which DataLoader refuses."""
    for module, call, name in code.reached.calls:
        sampler = _sampler_of(code, call, module)
        if name not in LOADERS or sampler is None or code.values.of(argument(call, "shuffle", 2), module) is not True:
            continue
        made = [home for home in origins(code, sampler, module) if _is_sampler(code, *home)]
        if made:
            is_sure = code.reached.is_sure(call, module) and all(
                code.reached.is_sure(node, home) for home, node in made
            )
            yield Finding(
                "error" if is_sure else "warning",
                "sampler-and-shuffle",
                module.where(call),
                "shuffle=True beside a sampler: DataLoader refuses both",
                "remove shuffle: DistributedSampler shuffles by itself",
            )
            return


def _is_sampler(code: Code, module: Module, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and code.program.name_of(node.func, module).endswith("DistributedSampler")


def _part_of_node(code: Code) -> Iterator[Finding]:
    """Yield a warning where data is divided among the processes of one node: then each node has the same parts."""
    if code.facts.nodes == 1 or code.processes == 1:
        return
    for module, call, name in code.reached.calls:
        if name in (INIT, INIT_RPC):
            continue
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        part = next((keywords[name] for name in _PART_NUMBERS if name in keywords), None)
        count = next((keywords[name] for name in _PART_COUNTS if name in keywords), None)
        if part is None or count is None:
            continue
        is_by_node = all(_NODES.search(ast.unparse(node)) for node in (part, count))
        is_by_node = is_by_node or (not code.facts.has_launcher and code.values.of(count, module) == code.facts.nodes)
        if code.processes != 1 and is_by_node:
            yield Finding(
                "warning",
                "part-of-node",
                module.where(part),
                f"the data is divided among the nodes ({ast.unparse(count)}): all processes of a node would read the "
                "same part",
                "use the rank among all processes and their number: dist.get_rank(), dist.get_world_size()",
            )
            return
        wrong = next((node for node in (part, count) if _is_of_node(code, node, module)), None)
        if wrong is not None:
            yield Finding(
                "warning",
                "part-of-node",
                module.where(wrong),
                f"{ast.unparse(wrong)} counts the processes of one node, but the data is for those of "
                f"{code.facts.nodes} nodes: some parts would be read twice, or refused",
                "use the rank among all processes and their number: dist.get_rank(), dist.get_world_size()",
            )
            return
        parts = code.values.of(count, module)
        if is_count(parts) and code.world_size and parts < code.world_size and _is_one_group(code):
            yield Finding(
                "warning",
                "part-of-node",
                module.where(count),
                f"the data is divided into {parts} parts ({ast.unparse(count)}), but the job has {code.world_size} "
                "processes: some would read the same part",
                "use the rank among all processes and their number: dist.get_rank(), dist.get_world_size()",
            )
            return


def _is_one_group(code: Code) -> bool:
    """Return whether all processes train one model on data of their own: none share a model or its layers."""
    wrappers = [call for _, call, name in code.reached.calls if is_ddp(name)]
    return (
        bool(wrappers)
        and not _GROUPS & code.names
        and all(argument(call, "process_group") is None for call in wrappers)
    )


def _is_of_node(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether an expression is a number within one node, by its value, or by all that it may be set to."""
    if code.facts.has_launcher and is_count(value := code.values.of(node, module)) and value > 1:
        return bool(value == code.processes)
    text = words_of(code, node, module)
    return _OF_NODE.search(text) is not None and not _OF_ALL.search(_OF_NODE.sub("", text))


def _empty_batch(code: Code) -> Iterator[Finding]:
    """Yield an error for a batch that is divided among more processes than it has samples."""
    for module, call, name in code.reached.calls:
        size = argument(call, "batch_size", 1)
        value = code.values.of(size, module)
        if (
            name in LOADERS
            and size is not None
            and not isinstance(size, ast.Constant)
            and is_count(value)
            and not value
        ):
            yield Finding(
                code.level_of(call, module),
                "empty-batch",
                module.where(call),
                f"{ast.unparse(size)} is 0 with {code.world_size} processes: DataLoader refuses that",
                "choose a batch size of at least one sample per process",
            )
            return


def _split_by_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning where each rank splits the data by another seed: what one tests on, another trains on."""
    seeds = [(module, call) for module, call in code.calls("torch.manual_seed") if call.args]
    if not code.is_parallel or not (code.is_distributed or code.has_framework):
        return
    yield from _split_at_random(code)
    if not seeds or not all(is_seed_of_rank(code, call.args[0], module) for module, call in seeds):
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


def _part_by_hash(code: Code) -> Iterator[Finding]:
    """Yield a warning where each process takes what hash() gives it: of a text, that is another number in each."""
    if "PYTHONHASHSEED" in code.names:
        return
    for module, node in code.program.of(ast.Compare):
        parts = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
        calls = [part for part in parts if isinstance(part, ast.Call) and spelled(part.func) == "hash"]
        is_divided = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in parts)
        if calls and is_divided and _RANK.search(ast.unparse(node)) and code.reached.of(node, module):
            yield Finding(
                "warning",
                "part-by-hash",
                module.where(node),
                f"{ast.unparse(calls[0])} differs between processes if it is of a text: some parts would be read "
                "twice, others never",
                "use a number that is the same everywhere, such as the position in a sorted list, or zlib.crc32()",
            )
            return


def _split_at_random(code: Code) -> Iterator[Finding]:
    """Yield a warning where data is split by random numbers that nothing seeds, so that they differ by rank."""
    if "broadcast_object_list" in code.names:
        return
    for module, call, whole in code.reached.calls:
        name = whole or _of_generator(code, call, module)
        source = _RANDOM_SPLITS.get(name)
        if source is None or _seeds_by_library(code) or hides_arguments(call):
            continue
        if any(argument(call, keyword) is not None for keyword in ("generator", "random_state")):
            continue
        seeds = [(home, one) for home, one, other in code.program.calls if other in source and one.args]
        cuts = [] if name in _SPLIT_BY_THEMSELVES else list(_cuts(call, module))
        if not (name in _SPLIT_BY_THEMSELVES or cuts):
            continue
        is_in_two = name in _SPLIT_BY_THEMSELVES or {cut.lower is None for cut in cuts} == {True, False}
        if not seeds:
            why = f"nothing seeds {ast.unparse(call.func)}()"
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


def _seeds_by_library(code: Code) -> bool:
    """Return whether a function of a library may seed everything; those of the program show what they do."""
    own = {node.name for _, node in code.program.of(ast.FunctionDef)}
    return any(seed in code.names and seed not in own for seed in _SEEDS_ALL)


def _of_generator(code: Code, call: ast.Call, module: Module) -> str:
    """Return what numpy's function a method of a new generator is like: `np.random.default_rng().permutation(n)`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    made = last_value(owner, module) if isinstance(owner, ast.Name) else owner
    is_new = isinstance(made, ast.Call) and code.program.name_of(made.func, module) == "numpy.random.default_rng"
    return f"numpy.random.{call.func.attr}" if is_new else ""  # type: ignore[attr-defined] # it is an attribute


def _cuts(call: ast.Call, module: Module) -> Iterator[ast.Slice]:
    """Yield how what a call shuffles is cut into parts afterwards: `files[:n]`, `files[rank::world]`."""
    statement = module.parents.get(call)
    names = [ast.unparse(arg) for arg in call.args if isinstance(arg, (ast.Name, ast.Attribute))]
    if isinstance(statement, ast.Assign):
        names += [ast.unparse(target) for target in statement.targets]
    for node in ast.walk(module.scope_of(call)):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.lineno >= call.lineno:
            if ast.unparse(node.value) in names:
                yield node.slice


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
