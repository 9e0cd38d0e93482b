"""Data that is divided among processes, but so that some read the same parts."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import INIT, INIT_RPC, LOADERS, SPAWN, Code, is_count, is_ddp, is_sharding
from jobsubmit.check.collectives.rank_conditions import is_in_branch_of_zero
from jobsubmit.check.loading.loaders import is_for_training, spelled_with_target
from jobsubmit.check.origins import keywords_of, origins, words_of
from jobsubmit.check.program.calls import argument, default_of, given_for, hides_arguments
from jobsubmit.check.program.module import Function, Module, own_method, spelled, unparsed
from jobsubmit.check.program.operations import Several, lifted
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_DEEPEST = 3
_PART_NUMBERS = ("rank", "process_rank", "shard_id", "shard_index", "shard", "index")
_PART_COUNTS = ("num_replicas", "num_processes", "num_shards", "world_size", "num_parts", "num_partitions")
_NUMBER = re.compile(r"(?:process_|shard_|global_|dp_|data_)?rank|shard(?:_id|_index)|process_(?:index|id)")
_ASKS_FOR_RANK = re.compile(r"get_rank|get_world_size|[\"']RANK|process_index")
_COUNT = re.compile(r"num_(?:processes|replicas|shards|ranks)|(?:dp_|data_)?world_size|(?:shard|process)_count")
_OF_NODE = re.compile(r"local_rank|LOCAL_RANK|LOCAL_WORLD_SIZE|NPROC_PER_NODE|device_count|\blocal_world|\bdevice_id\b")
_OF_ALL = re.compile(
    r"\bRANK\b|\brank\b|get_rank|get_world_size|WORLD_SIZE|nnodes|(?:node|machine|global)_rank|NODE_RANK|\bworld_size\b"
)
_RANKS = re.compile(
    r"rank|world|shard_(?!path|dir|file|list|name|url|size|pattern)|replica|process_(?:index|count)|split_(?:data|by)",
    re.IGNORECASE,
)
_DIVIDES = re.compile(rf"{_RANKS.pattern}|islice|split_|::", re.IGNORECASE)
_NODES = re.compile(
    r"(?:^|(?<!per)[._])(?:n_?nodes|num_nodes|nodes|node|node_rank|node_id|machine_rank|num_machines|group_rank)$"
    r"|\b(?:NODE_RANK|GROUP_RANK|SLURM_NODEID|NNODES|SLURM_NNODES)\b"
)
_DIVIDERS = frozenset(["split_dataset_by_node", "split_by_node", "worker_init_fn", "DataPartitioner"])
# They make groups of processes that share a model.
_GROUPS = frozenset(
    [
        *("new_group", "new_subgroups", "init_device_mesh", "DeviceMesh", "device_mesh", "parallelize_module"),
        *("initialize_model_parallel", "model_parallel_size", "tensor_parallel_size"),
    ]
)
_OF_DATA = re.compile(r"data|iter|load|shard|split|sample|example|file", re.IGNORECASE)
_COUNTS_NODE = re.compile(r"gpus?(?:_per_node)?\b|_per_node\b|local_(?:world_)?size|nproc|device_count")
_DIVIDES_SHARDS = re.compile(r"^(?:split_by_node|ResampledShards\w*|nodesplitter|SharedShardList)$")
_WITHOUT_WORKERS = re.compile(r"^(?:\w*worker\w* is None|not \w*worker\w*)$")
_WORKERS = re.compile(r"(?:^--|[.])(?:num_?workers|workers)=")
_NUM_WORKERS = 5  # the position of the argument of DataLoader
_PRINTS = re.compile(r"print$|\blog|\.(?:info|debug|warning)$")
_DIVISIONS = (ast.Div, ast.FloorDiv)
_WORLD = re.compile(r"(?<!local_)(?:world_size|WORLD_SIZE)")
_RANK = re.compile(r"\brank\b|_rank\b|\bworld|get_rank|process_index")


def check_parts(code: Code) -> Iterator[Finding]:
    """Yield a warning if several processes read the same part of the data."""
    if code.world_size != 1:
        yield from itertools.islice(itertools.chain(_undivided(code), _left_at_default(code)), 1)
        yield from itertools.islice(_same_shards(code), 1)
        yield from itertools.islice(_divided_by_workers(code), 1)
        yield from _part_of_node(code)
        yield from _part_by_hash(code)


def _undivided(code: Code) -> Iterator[Finding]:
    """Yield a warning for a stream of data that knows of no other processes, and that each of them reads as a whole."""
    is_replicated = code.wraps_models or code.has_only_engine or _is_sharded(code)
    if not (code.leaves_data_to_program and code.is_parallel and is_replicated):
        return
    every = [
        (module, node, _is_divided(code, node, module))
        for module, node in code.program.of(ast.ClassDef)
        if any(unparsed(base).endswith("IterableDataset") for base in node.bases)
    ]
    is_any_divided = any(is_divided for _, _, is_divided in every)
    streams = {
        f"{module.name}.{node.name}"
        for module, node, is_divided in every
        if not is_divided and not (is_any_divided and _passes_on(node))
    }
    if not streams or _divides_stream(code):
        return
    for module, call, name in code.reached.calls:
        if (
            name in streams
            and not _may_get_rank(code, call, name)
            and not _DIVIDES.search(spelled_with_target(call, module))
            and not any(_RANK.search(words_of(code, given, module)) for given in call.args)
            and is_for_training(call, module)
        ):
            yield Finding(
                "warning",
                "no-sampler",
                module.where(call),
                "each process reads all of this stream: an epoch takes as long as with one process",
                "in __iter__, let each rank skip the items of the others; with several workers, divide among them, too",
            )
            return


def _divides_stream(code: Code) -> bool:
    """Return whether the job may divide a stream that it trains with, by what a library has for that."""
    if not _DIVIDERS & code.names_in_use:
        return False
    calls = [(module, call) for module, call, name in code.reached.calls if name.rpartition(".")[2] in _DIVIDERS]
    return not calls or any(is_for_training(call, module) for module, call in calls)


def _passes_on(stream: ast.ClassDef) -> bool:
    """Return whether a stream goes through another one that it gets: `iter(self.source)`."""
    maker, goes = own_method(stream, "__init__"), own_method(stream, "__iter__")
    if maker is None or goes is None:
        return False
    stores = [node for node in walk(maker) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    given = {spelled(one) for one in stores if one.attr in parameters(maker)}
    through = [node.iter for node in walk(goes) if isinstance(node, ast.For)]
    through += [node.args[0] for node in walk(goes) if isinstance(node, ast.Call) and spelled(node.func) == "iter"]
    return any(spelled(one) in given for one in through)


def _may_get_rank(code: Code, call: ast.Call, name: str) -> bool:
    """Return whether a call gives its class arguments that are not seen, and one of them may be the rank."""
    found = code.program.definition(name)
    maker = own_method(found[1], "__init__") if found is not None and isinstance(found[1], ast.ClassDef) else None
    takes_any = maker is None or maker.args.kwarg is not None or maker.args.vararg is not None
    return hides_arguments(call) and (takes_any or any(_RANKS.search(one) for one in parameters(maker)))


def _same_shards(code: Code) -> Iterator[Finding]:
    """Yield a warning for a list of shards of webdataset that nothing divides among the processes.

    Source: `SimpleShardList` and `split_by_worker` of webdataset 0.2 and 1.0.
    """
    for module, call in code.calls("webdataset.SimpleShardList", "webdataset.shardlists.SimpleShardList"):
        if is_for_training(call, module) and not _divides_shards(code):
            text = "each process reads all shards: split_by_worker divides them only among the workers of one process"
            yield Finding("warning", "no-sampler", module.where(call), text, "add wds.split_by_node to the pipeline")


def _divided_by_workers(code: Code) -> Iterator[Finding]:
    """Yield a warning for a stream that only the workers of a loader divide by rank, in a job that has no workers."""
    for module, owner in code.program.of(ast.ClassDef):
        goes = own_method(owner, "__iter__")
        for node in walk(goes) if goes is not None else ():
            if isinstance(node, ast.If) and _WITHOUT_WORKERS.search(unparsed(node.test)) and node.orelse:
                alone, in_worker = ("\n".join(map(unparsed, part)) for part in (node.body, node.orelse))
                if _RANK.search(in_worker) and not _RANK.search(alone) and _has_no_workers(code):
                    yield Finding(
                        "warning",
                        "no-sampler",
                        module.where(node),
                        "without worker processes (num_workers is 0 in this job), each rank reads all of this stream",
                        "set num_workers to 1 or more, or divide by rank in this branch, too",
                    )


def _has_no_workers(code: Code) -> bool:
    """Return whether an argument of the job, or each loader, asks for no worker processes."""
    given = dict(word.split("=", 1) for word in code.facts.argv if _WORKERS.search(word))  # the last value counts
    if given:
        return set(given.values()) == {"0"}
    loaders = [(module, call) for module, call, name in code.reached.calls if name in LOADERS]
    numbers = [code.values.of(argument(call, "num_workers", _NUM_WORKERS), module) for module, call in loaders]
    return bool(numbers) and all(type(number) is int and number == 0 for number in numbers)


def _divides_shards(code: Code) -> bool:
    """Return whether something that is reached divides shards among the processes, or draws them at random."""
    nodes = code.program.of(ast.Name, ast.Attribute, ast.Call)
    reached = [node for module, node in nodes if code.reached.of(node, module)]
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in reached}
    keywords = {str(keyword.arg) for node in reached if isinstance(node, ast.Call) for keyword in node.keywords}
    return "resampled" in keywords or any(_DIVIDES_SHARDS.search(name) for name in names | keywords)


def _left_at_default(code: Code) -> Iterator[Finding]:
    """Yield a warning for data that divides itself by a rank, but keeps its defaults: `rank=0, world_size=1`."""
    if code.has_only_trainer:
        return  # a Trainer divides all data that it gets
    for module, call, name in code.reached.calls if code.is_parallel else ():
        found = code.program.definition(name)
        if found is None or not isinstance(found[1], ast.ClassDef) or not _is_data(found[1]):
            continue
        maker = own_method(found[1], "__init__")
        if maker is None or hides_arguments(call) or not is_for_training(call, module):
            continue
        if _ASKS_FOR_RANK.search(unparsed(found[1])):
            continue
        names = sorted(parameters(maker))
        numbers = [one for one in names if _NUMBER.fullmatch(one) and _is_default(maker, one, 0)]
        counts = [one for one in names if _COUNT.fullmatch(one) and _is_default(maker, one, 1)]
        if numbers and counts and all(given_for(call, maker, one) is None for one in (*numbers, *counts)):
            yield Finding(
                "warning",
                "no-sampler",
                module.where(call),
                f"{found[1].name} does not get {counts[0]} and {numbers[0]}, which are 1 and 0 by default: each "
                "process gets all of the data",
                f"pass both: {counts[0]}=dist.get_world_size(), {numbers[0]}=dist.get_rank()",
            )
            return


def _is_data(owner: ast.ClassDef) -> bool:
    """Return whether a class holds data, loads it or selects it, by its name or what it is derived from."""
    return any("Data" in name or "Sampler" in name for name in (owner.name, *map(unparsed, owner.bases)))


def _is_default(maker: Function, name: str, value: int) -> bool:
    default = default_of(maker, name)
    return isinstance(default, ast.Constant) and default.value is not False and default.value == value


def _is_sharded(code: Code) -> bool:
    """Return whether all processes shard the model, each with data of its own."""
    calls = any(is_sharding(name) for _, _, name in code.reached.calls)
    return calls and not _GROUPS & code.names_in_use


def _is_divided(code: Code, stream: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether a stream may leave items to other processes, itself or by what it uses of the program.

    Not only to other workers of its loader.
    """
    text = unparsed(stream)
    if "get_worker_info" in text:
        if any(_RANKS.search(use) for use in _uses(stream, module)):
            return True
    elif _DIVIDES.search(text) is not None:
        return True
    names = {code.program.name_of(node, module) for node in walk(stream) if isinstance(node, ast.Name)}
    used = (code.program.definition(name) for name in names) if depth < _DEEPEST else ()
    return any(one is not None and _is_divided(code, one[1], one[0], depth + 1) for one in used)


def _uses(stream: ast.AST, module: Module) -> Iterator[str]:
    """Yield the names of what a class uses for more than to keep it: not those in `dict(rank=self.rank)`."""
    for node in walk(stream):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            if not _is_kept(node, module) and not _decides_on_print(node, module):
                yield spelled(node).rpartition(".")[2]


def _decides_on_print(node: ast.AST, module: Module) -> bool:
    """Return whether a value only decides whether something is printed."""
    inner = node
    for above in module.above(node):
        if isinstance(above, ast.If):
            calls = [one.value for one in above.body if isinstance(one, ast.Expr)]
            is_print = all(isinstance(one, ast.Call) and _PRINTS.search(spelled(one.func)) for one in calls)
            return inner is above.test and len(calls) == len(above.body) and is_print and not above.orelse
        if isinstance(above, ast.stmt):
            return False
        inner = above
    return False


def _is_kept(node: ast.AST, module: Module) -> bool:
    """Return whether a value, or what a call returns, is only assigned, alone or as one of several, or noted."""
    above = module.parents.get(node)
    if isinstance(above, ast.Call) and above.func is node:
        return _is_kept(above, module)
    if isinstance(above, ast.keyword) and isinstance(call := module.parents.get(above), ast.Call):
        return spelled(call.func) == "dict"
    while isinstance(above, (ast.Tuple, ast.IfExp)):  # `dist.get_rank() if dist.is_initialized() else 0`
        above = module.parents.get(above)
    return isinstance(above, ast.Assign) and not isinstance(node, ast.Name)


def _part_of_node(code: Code) -> Iterator[Finding]:
    """Yield a warning where data is divided among the processes of one node: then each node has the same parts."""
    if code.facts.nodes == 1 or code.processes == 1:
        return
    yield from itertools.chain(_given_by_position(code), _begun_by_local_rank(code))
    for calling, call, name in code.reached.calls:
        if name in (INIT, INIT_RPC) or _starts_processes(code, name):
            continue
        keywords = keywords_of(code, call, calling)
        own_part = next((keywords[name] for name in _PART_NUMBERS if name in keywords), None)
        taken = calling.parents.get(call)
        if own_part is None and isinstance(taken, ast.Subscript) and taken.value is call:
            own_part = calling, taken.slice  # `partition_dataset(data, num_partitions=8)[rank]`
        own_count = next((keywords[name] for name in _PART_COUNTS if name in keywords), None)
        if own_part is None or own_count is None or _is_for_some_ranks(code, call, calling):
            continue
        (module, part), (_, count) = own_part, own_count
        if _is_of_loop(part, module):
            continue  # each process goes through all of the parts
        is_by_node = all(_NODES.search(unparsed(node)) for node in (part, count))
        is_by_node = is_by_node or (not code.facts.has_launcher and code.values.of(count, module) == code.facts.nodes)
        if code.processes != 1 and is_by_node:
            yield _divided_wrongly(
                module.where(part),
                f"the data is divided among the nodes ({unparsed(count)}): all processes of a node would read the "
                "same part",
            )
            return
        wrong = next((node for node in (part, count) if _is_of_node(code, node, module)), None)
        if wrong is not None:
            yield _counted_in_node(code, wrong, module)
            return
        parts = code.values.of(count, module)
        is_other_way = isinstance(count, ast.Constant) and not code.reached.is_sure(call, calling)
        if is_other_way or (parts == 1 and not is_for_training(call, calling)):
            continue  # this may not be executed, or each process validates with all of the data
        if is_count(parts) and code.world_size and 0 <= parts < code.world_size and _is_one_group(code):
            yield _divided_wrongly(
                module.where(count),
                f"the data is divided into {parts} parts ({unparsed(count)}), but the job has {code.world_size} "
                "processes: some would read the same part",
            )
            return


def _is_of_loop(part: ast.expr, module: Module) -> bool:
    """Return whether the number of a part is the variable of a loop around it."""
    loops = (above for above in module.above(part) if isinstance(above, ast.For))
    return isinstance(part, ast.Name) and any(spelled(loop.target) == part.id for loop in loops)


def _starts_processes(code: Code, name: str) -> bool:
    """Return whether a function of the program calls mp.spawn: what it gets counts the nodes."""
    found = code.program.definition(name)
    calls = [node for node in walk(found[1]) if isinstance(node, ast.Call)] if found is not None else []
    return found is not None and any(code.program.name_of(call.func, found[0]) == SPAWN for call in calls)


def _is_for_some_ranks(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether only one rank, or one node, comes to a call, or to every call of the function that it is in."""
    function = module.function_of(call)
    callers = code.program.calls_to(function, module) if function is not None else ()
    callers = [(home, one) for home, one in callers if code.reached.of(one, home)]
    return is_in_branch_of_zero(code, call, module) or (
        bool(callers) and all(is_in_branch_of_zero(code, one, home) for home, one in callers)
    )


def _counted_in_node(code: Code, part: ast.expr, module: Module) -> Finding:
    text = (
        f"{unparsed(part)} counts the processes of one node, but the data is for those of {code.facts.nodes} nodes: "
        "some parts would be read twice, or refused"
    )
    return _divided_wrongly(module.where(part), text)


def _divided_wrongly(where: str, text: str) -> Finding:
    hint = "use the rank among all processes and their number: dist.get_rank(), dist.get_world_size()"
    return Finding("warning", "part-of-node", where, text, hint)


def _is_one_group(code: Code) -> bool:
    """Return whether all processes train one model on data of their own: none share a model or its layers."""
    wrappers = [call for _, call, name in code.reached.calls if is_ddp(name)]
    return (
        bool(wrappers)
        and not _GROUPS & code.names_in_use
        and all(argument(call, "process_group") is None for call in wrappers)
    )


def _given_by_position(code: Code) -> Iterator[Finding]:
    """Yield a warning for `load(files, args.local_rank, args.gpus_per_node)`: each node would get the same parts."""
    for module, call, _ in code.reached.calls:
        for part, count in itertools.pairwise(call.args):
            if "local_rank" not in spelled(part) or not _COUNTS_NODE.search(unparsed(count)):
                continue
            if _OF_DATA.search(f"{spelled(call.func)} {unparsed(call.args[0])}"):
                yield _counted_in_node(code, part, module)
                return


def _begun_by_local_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning for `local_rank * (len(data) // world_size)`: the parts of all processes, begun within a node."""
    for module, node in code.program.of(ast.BinOp):
        if not isinstance(node.op, ast.Mult) or not code.reached.of(node, module):
            continue
        for number, size in ((node.left, node.right), (node.right, node.left)):
            is_number = spelled(number).rpartition(".")[2] == "local_rank" and _is_of_node(code, number, module)
            parts = [part for _, part in origins(code, size, module)] if is_number else []
            is_of_data = any("len(" in unparsed(part) for part in parts)
            if is_of_data and not _adds_nodes(node, module) and any(map(_is_by_world, parts)):
                yield _divided_wrongly(
                    module.where(node),
                    f"`{unparsed(node)}` begins at the local rank, but the parts are for all processes: each node "
                    "would read the same parts",
                )
                return


def _adds_nodes(product: ast.BinOp, module: Module) -> bool:
    """Return whether the parts of the nodes before are added to a number."""
    above = module.parents.get(product)
    return isinstance(above, ast.BinOp) and isinstance(above.op, ast.Add)


def _is_by_world(part: ast.AST) -> bool:
    """Return whether an expression divides by the number of all processes."""
    divisors = (node.right for node in walk(part) if isinstance(node, ast.BinOp) and isinstance(node.op, _DIVISIONS))
    return any(_WORLD.search(unparsed(one)) for one in divisors)


def _is_of_node(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether an expression is a number within one node, by its value, or by all that it may be set to."""
    if code.facts.has_launcher and is_count(value := code.values.of(node, module)) and value > 1:
        return bool(value == code.processes)
    ranks = code.facts.environment.get(contract.LOCAL_RANK)
    if isinstance(ranks, Several) and code.values.of(node, module) == lifted(int, ranks) and _is_one_group(code):
        return True  # such as --local_rank, under whatever name the code keeps it
    text = words_of(code, node, module)
    return _OF_NODE.search(text) is not None and not _OF_ALL.search(_OF_NODE.sub("", text))


def _part_by_hash(code: Code) -> Iterator[Finding]:
    """Yield a warning where each process takes what hash() gives it: of a text, that is another number in each."""
    if "PYTHONHASHSEED" in code.names:
        return
    for module, node in code.program.of(ast.Compare):
        parts = [part for side in (node.left, *node.comparators) for part in walk(side)]
        calls = [part for part in parts if isinstance(part, ast.Call) and spelled(part.func) == "hash"]
        is_divided = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in parts)
        if calls and is_divided and _RANK.search(unparsed(node)) and code.reached.of(node, module):
            yield Finding(
                "warning",
                "part-by-hash",
                module.where(node),
                f"{unparsed(calls[0])} differs between processes if it is of a text: some parts would be read "
                "twice, others never",
                "use a number that is the same everywhere, such as the position in a sorted list, or zlib.crc32()",
            )
            return
