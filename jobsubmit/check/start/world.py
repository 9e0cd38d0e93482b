"""What the code takes for its rank among all processes, and for their number, on several nodes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import INIT, Code, is_count
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import SPAWNS, argument, given_for
from jobsubmit.check.program.module import Function, Module, spelled, unparsed
from jobsubmit.check.program.objects import field_of
from jobsubmit.check.program.operations import Several
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, is_executed, is_load, parameters, values_of_field
from jobsubmit.common.finding import Finding

_SIZE_NAME = re.compile(r"(?:dp_)?world_size|num_tasks|num_replicas|n_?procs_total")
_NODE_RANK = re.compile(r"rank|node_rank|nr|node_id|machine_rank")
_OPTION_OF_NODE = re.compile(r"(?:node|machine|shard)_?(?:rank|id|index|idx)|nr")
_COUNT_OF_NODES = re.compile(r"(?:n|num)_?(?:nodes|machines)|nodes|nnodes")
_WORLD_SIZE, _RANK, _SPAWN_ARGUMENTS = 3, 4, 2
_DEEPEST = 3


def check_world(code: Code) -> Iterator[Finding]:
    """Yield where the nodes of a job would take the same ranks, or count one node's processes as all."""
    if code.facts.nodes == 1:
        yield from _one_rank(code)
        return
    if code.facts.has_launcher:
        yield from _size_of_a_node(code)
        yield from _size_in_settings(code)
        yield from _rank_of_a_node(code)
        yield from _unpassed_rank(code)
    else:
        found = list(_same_ranks(code)) or list(_unpassed_node_rank(code))
        yield from found
        yield from _nodes_as_processes(code)
        if not found:
            yield from _processes_of_a_node(code)


def _one_rank(code: Code) -> Iterator[Finding]:
    """Yield an error where the processes of one node join with the same rank, such as the default of an argument."""
    if not code.facts.has_launcher or (code.processes or 0) <= 1 or any(code.calls(*SPAWNS)):
        return
    for module, call in code.calls(INIT):
        rank = argument(call, "rank", _RANK)
        value = code.values.of(rank, module)
        if rank is not None and not isinstance(rank, ast.Constant) and is_count(value) and value >= 0:
            yield Finding(
                code.level_of(call, module),
                "same-ranks",
                module.where(call),
                f"rank={unparsed(rank)} is {value} in each of the {code.processes} processes",
                "leave rank and world_size out: they are read from the environment (RANK and WORLD_SIZE)",
            )
            return


def _size_of_a_node(code: Code) -> Iterator[Finding]:
    for module, node in code.program.of(ast.Assign):
        target = node.targets[0]
        name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
        counts_gpus = isinstance(node.value, ast.Call) and (
            code.program.name_of(node.value.func, module) == "torch.cuda.device_count"
        )
        is_fallback = any(isinstance(above, ast.ExceptHandler) for above in module.above(node))
        is_size = _SIZE_NAME.fullmatch(name) and not _is_only_asked(target, module)
        if counts_gpus and not is_fallback and is_size and code.reached.of(node, module):
            yield Finding(
                "warning",
                "fixed-world-size",
                module.where(node),
                f"{name} is the number of GPUs of one node, but the job has {code.facts.nodes} nodes",
                "use dist.get_world_size(), or read WORLD_SIZE from the environment",
            )
            return


def _is_only_asked(target: ast.expr, module: Module) -> bool:
    """Return whether a variable is only compared, or printed: `if world_size > 1: start(args)`."""
    if not isinstance(target, ast.Name):
        return False
    uses = [node for node in walk(module.scope_of(target)) if is_load(node, target.id)]
    return bool(uses) and all(isinstance(module.parents.get(one), (ast.Compare, ast.FormattedValue)) for one in uses)


def _size_in_settings(code: Code) -> Iterator[Finding]:
    """Yield a warning for `params["world_size"] = 16` in a job with another number of processes."""
    reached = [(module, node) for module, node in code.program.of(ast.Subscript) if code.reached.of(node, module)]
    sizes = [(key, module, node) for module, node in reached if _SIZE_NAME.fullmatch(key := _key_of(node))]
    read = {(key, spelled(node.value)) for key, _, node in sizes if isinstance(node.ctx, ast.Load)}
    stores = [(key, module, node) for key, module, node in sizes if isinstance(node.ctx, ast.Store)]
    for key, module, node in stores if len(stores) == 1 else ():
        value = assigned_to(node, module)
        size = value.value if isinstance(value, ast.Constant) else None
        owner = spelled(node.value)
        is_read = (key, owner) in read and not _is_changed_as_a_whole(code, owner)
        if is_count(size) and code.world_size not in (None, size) and is_read:
            yield Finding(
                "warning",
                "fixed-world-size",
                module.where(node),
                f"{unparsed(node)} is {size!r}, but the job has {code.world_size} processes",
                "use dist.get_world_size(), or read WORLD_SIZE from the environment",
            )


def _is_changed_as_a_whole(code: Code, owner: str) -> bool:
    """Return whether a mapping may get entries that are not written down: `params.update(…)`, `params[name] = …`."""
    updates = any(spelled(call.func) == f"{owner}.update" for _, call, _ in code.program.calls)
    merges = any(spelled(node.target) == owner for _, node in code.program.of(ast.AugAssign))
    stores = (node for _, node in code.program.of(ast.Subscript) if isinstance(node.ctx, ast.Store))
    return updates or merges or any(spelled(node.value) == owner and not _key_of(node) for node in stores)


def _key_of(node: ast.Subscript) -> str:
    """Return the key of an entry, if it is a text that is written down."""
    match node.slice:
        case ast.Constant(value=str(key)):
            return key
    return ""


def _rank_of_a_node(code: Code) -> Iterator[Finding]:
    """Yield an error where a process joins with its number on its node: the nodes have the same ones."""
    for module, call in code.calls(INIT):
        rank = argument(call, "rank", _RANK)
        value = code.values.of(rank, module)
        ranks = value.values if isinstance(value, Several) else (value,)
        size = code.values.of(argument(call, "world_size", _WORLD_SIZE), module)
        if not all(map(is_count, ranks)) or (is_count(size) and size != code.world_size):
            continue
        if rank is not None and code.processes and 0 <= max(ranks) < code.processes:
            yield Finding(
                code.level_of(call, module),
                "same-ranks",
                module.where(call),
                f"rank={unparsed(rank)} is the same on all {code.facts.nodes} nodes: at most {max(ranks)}, but the "
                f"job has {code.world_size} processes",
                "leave rank and world_size out: they are read from the environment (RANK and WORLD_SIZE)",
            )
            return


def _same_ranks(code: Code) -> Iterator[Finding]:
    """Yield an error where the rank of a process is only its number on its node."""
    for module, call in code.calls(INIT):
        rank = argument(call, "rank", _RANK)
        source: ast.AST | None = rank if rank is None else _last_value(code, rank, call, module)
        at = module
        if isinstance(source, ast.Attribute) and (kept := _kept_sum(code, source)) is not None:
            at, source = kept
        if isinstance(source, ast.BinOp) and (product := _product_of_nodes(source)) and code.facts.nodes > 1:
            yield Finding(
                code.level_of(call, module),
                "same-ranks",
                module.where(call),
                f"{product} is not the number of processes before those of a node: some ranks exist twice",
                "multiply the number of the node by the processes of each: rank = node_rank * processes_per_node + "
                "local_rank",
            )
            return
        if isinstance(source, ast.BinOp) and _is_plain_sum(code, source, at):
            yield Finding(
                "warning",
                "same-ranks",
                module.where(call),
                f"{unparsed(source)} adds the number of the node: processes of different nodes have the same rank",
                "add all processes of the nodes before: rank = node_rank * processes_per_node + local_rank",
            )
            return
        home = module
        if isinstance(source, ast.Attribute) and (made := field_of(code.program, source, module)) is not None:
            home, source = made
        zero = ""
        if isinstance(source, ast.BinOp) and code.facts.nodes > 1:
            zero = _option_that_is_zero(code, source, at)
            source = _without_zero(code, source, at)
        if not isinstance(source, ast.Name) or not _is_number_of_process(code, source, home):
            continue
        said = (
            f"the rank is only the number of the process on its node: all {code.facts.nodes} nodes have the same ranks"
        )
        hint = (
            'add those of the nodes before: rank = int(os.environ["NODE_RANK"]) * processes_per_node + local_rank, and '
            'world_size = int(os.environ["NNODES"]) * processes_per_node'
        )
        if zero:
            said = f"{zero} is 0 on all {code.facts.nodes} nodes, so they have the same ranks"
            hint = f"pass {zero} $NODE_RANK in command: [bash, -c, …], where a shell reads the variable"
        yield Finding(code.level_of(call, module), "same-ranks", module.where(call), said, hint)
        return


def _unpassed_node_rank(code: Code) -> Iterator[Finding]:
    """Yield an error where the rank is computed from an option for the number of the node that nobody passes."""
    passed = code.facts.options_given
    unpassed = {
        option.field: option
        for option in code.line.options
        if _OPTION_OF_NODE.fullmatch(option.field)
        and not passed & set(option.names)
        and is_count(option.default)
        and option.field not in code.program.attribute_stores
    }
    for module, call in code.calls(INIT) if unpassed else ():
        rank = argument(call, "rank", _RANK)
        parts = [node for _, part in origins(code, rank, module) for node in walk(part)] if rank is not None else []
        used = {node.attr for node in parts if isinstance(node, ast.Attribute)}
        for option in (unpassed[name] for name in sorted(used & set(unpassed))):
            yield Finding(
                code.level_of(call, module),
                "same-ranks",
                option.where,
                f"{option.names[0]} is not passed: all {code.facts.nodes} nodes use its default, "
                f"{option.default}, and have the same ranks",
                "use --rank, which mode spawn passes: it is the number of the node"
                if code.facts.mode == "spawn"
                else f"pass {max(option.names, key=len)}=$NODE_RANK in command: [bash, -c, …], where a shell reads the "
                "variable",
            )
            return


def _unpassed_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning for `args.rank = args.rank * n + local_rank` under a launcher, which passes no --rank."""
    passed = code.facts.options_given
    for module, call in code.calls(INIT):
        rank = argument(call, "rank", _RANK)
        if not isinstance(rank, ast.Attribute):
            continue
        options = [one for one in code.line.options if one.field == rank.attr and is_count(one.default)]
        stores = [
            (home, assigned_to(store, home))
            for home, store in code.program.attribute_stores.get(rank.attr, ())
            if code.reached.of(store, home)
        ]
        is_sum = bool(stores) and all(value is not None and _adds_to_own(value, rank.attr) for _, value in stores)
        if options and is_sum and not any(passed & set(one.names) for one in options):
            yield Finding(
                "warning",
                "same-ranks",
                module.where(call),
                f"{unparsed(rank)} is computed from {options[0].names[0]}, which the launcher does not pass: all "
                f"{code.facts.nodes} nodes use its default, {options[0].default}, and have the same ranks",
                "read RANK from the environment, which the launcher sets",
            )
            return


def _adds_to_own(value: ast.expr, name: str) -> bool:
    """Return whether a number is `x.rank * n + local_rank`, computed from its own value of before."""
    products = [
        side
        for side in (
            (value.left, value.right) if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) else ()
        )
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)
    ]
    factors = [factor for product in products for factor in (product.left, product.right)]
    return any(isinstance(factor, ast.Attribute) and factor.attr == name for factor in factors)


def _product_of_nodes(node: ast.BinOp) -> str:
    """Return the product of a rank `machine_rank * num_machines + local_rank`; empty for any other sum."""
    products = [
        side for side in (node.left, node.right) if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)
    ]
    for product in products if isinstance(node.op, ast.Add) else ():
        names = [spelled(side).rpartition(".")[2] for side in (product.left, product.right)]
        if any(map(_OPTION_OF_NODE.fullmatch, names)) and any(map(_COUNT_OF_NODES.fullmatch, names)):
            return unparsed(product)
    return ""


def _is_plain_sum(code: Code, node: ast.BinOp, module: Module) -> bool:
    """Return whether a rank is `args.rank + gpu`: the number of a node and that of a process, on nodes with several."""
    sides = (node.left, node.right)
    numbers = [side for side in sides if isinstance(side, ast.Name) and _is_number_of_process(code, side, module)]
    nodes = [side for side in sides if side not in numbers and _NODE_RANK.fullmatch(spelled(side).rpartition(".")[2])]
    is_changed = any(
        spelled(store.value) == spelled(side.value)
        for side in nodes
        if isinstance(side, ast.Attribute)
        for _, store in code.program.attribute_stores.get(side.attr, ())
    )
    parts = (part for side in nodes for _, one in origins(code, side, module) for part in walk(one))
    is_product = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) for part in parts)
    is_plain = isinstance(node.op, ast.Add) and not is_changed and not is_product
    return is_plain and bool(numbers and nodes) and code.processes != 1


def _without_zero(code: Code, node: ast.BinOp, module: Module) -> ast.expr:
    """Return what is left of `node_rank * n + local_rank` if the number of the node is 0 on all nodes."""
    for product, rest in ((node.left, node.right), (node.right, node.left)):
        factors = (product.left, product.right) if isinstance(product, ast.BinOp) else ()
        is_product = isinstance(node.op, ast.Add) and isinstance(getattr(product, "op", None), ast.Mult)
        if is_product and any(_is_always_zero(code, one, module) for one in factors):
            return rest
    return node


def _option_that_is_zero(code: Code, node: ast.BinOp, module: Module) -> str:
    """Return the name of the option for the number of the node that a sum uses, and that is 0; empty if none is."""
    fields = (one for one in walk(node) if isinstance(one, ast.Attribute) and _is_passed(code, one))
    zeros = {one.attr for one in fields if code.values.of(one, module) == 0}
    return next((max(one.names, key=len) for one in code.line.options if one.field in zeros), "")


def _is_always_zero(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a number is 0 by what is written down, and not only on the first node."""
    is_written = all(isinstance(part, (ast.Name, ast.Constant)) for _, part in origins(code, node, module))
    value = code.values.of(node, module)
    return (is_written or _is_passed(code, node)) and is_count(value) and bool(value == 0)


def _is_passed(code: Code, node: ast.expr) -> bool:
    """Return whether a number is an argument in `command`, and the same on all nodes."""
    names = {name for one in code.line.options if one.field == getattr(node, "attr", "") for name in one.names}
    is_same = code.facts.mode == "command" and names.isdisjoint(code.facts.options_of_node)
    return is_same and not names.isdisjoint(code.facts.options_given)


def _kept_sum(code: Code, field: ast.Attribute) -> tuple[Module, ast.BinOp] | None:
    """Return the sum that a field is set to, if that happens in one place."""
    values = values_of_field(code.program, field.attr)
    sums = [(home, value) for home, value in values if isinstance(value, ast.BinOp)]
    return sums[0] if len(sums) == len(values) == 1 else None


def _last_value(code: Code, node: ast.expr, call: ast.Call, module: Module) -> ast.expr:
    """Return what a variable or an attribute was set to last before a call, in the same function; else itself.

    Of several values, the last one counts if it is surely set.
    """
    scope = module.function_of(call)
    if scope is None or not isinstance(node, (ast.Name, ast.Attribute)):
        return node
    spelled = unparsed(node)
    places = [
        one
        for one in walk(scope)
        if isinstance(one, ast.Assign) and one.lineno < call.lineno and unparsed(one.targets[0]) == spelled
    ]
    runs = [is_executed(one, scope, module, code.values.truth) for one in places]
    made = [(one.value, run) for one, run in zip(places, runs, strict=True) if run is not False]
    is_clear = len(made) == 1 or (bool(made) and made[-1][1])
    return made[-1][0] if is_clear else node


def _is_number_of_process(code: Code, name: ast.Name, module: Module, depth: int = 0) -> bool:
    """Return whether a variable is the first parameter of a function that mp.spawn starts, or given on by it."""
    function = module.function_of(name)
    if function is None or name.id not in parameters(function) or depth > _DEEPEST:
        return False
    if (given_by_process := _given_by_process(code, name.id, function)) is not None:
        home, one = given_by_process
        return any(isinstance(above, ast.For) and unparsed(above.target) == unparsed(one) for above in home.above(one))
    if function.name in code.spawned:
        return function.args.args[0].arg == name.id
    given = [(home, given_for(call, function, name.id)) for home, call in code.program.calls_to(function, module)]
    return bool(given) and all(
        isinstance(one, ast.Name) and _is_number_of_process(code, one, home, depth + 1) for home, one in given
    )


def _given_by_process(code: Code, name: str, function: Function) -> tuple[Module, ast.expr] | None:
    """Return what Process gives for a parameter of the function that it starts."""
    own = [arg.arg for arg in function.args.args]
    for module, call, called in code.reached.calls:
        target, given = argument(call, "target"), argument(call, "args")
        if called.endswith("Process") and isinstance(target, ast.Name) and target.id == function.name:
            items = given.elts if isinstance(given, (ast.Tuple, ast.List)) else []
            return (module, items[own.index(name)]) if own.index(name) < len(items) else None
    return None


def _nodes_as_processes(code: Code) -> Iterator[Finding]:
    """Yield a warning where --world_size, which counts nodes, is taken for the number of processes."""
    starts = [argument(call, "nprocs", _SPAWN_ARGUMENTS) for _, call in code.calls(*SPAWNS)]
    several = [node for node in starts if node is not None and not (isinstance(node, ast.Constant) and node.value == 1)]
    if code.facts.mode != "spawn" or not several or "world_size" in code.program.stored_attributes:
        return
    for module, call in code.calls(*SPAWNS):
        count = argument(call, "nprocs", _SPAWN_ARGUMENTS)
        if isinstance(count, ast.Attribute) and count.attr == "world_size" and code.facts.gpus != code.facts.nodes:
            yield Finding(
                "warning",
                "fixed-world-size",
                module.where(call),
                f"{unparsed(count)} counts nodes, but nprocs is the number of processes on one node",
                "start one process for each GPU of the node: nprocs=torch.cuda.device_count()",
            )
            return
    for module, call in code.calls(INIT):
        size = argument(call, "world_size", _WORLD_SIZE)
        is_argument = isinstance(size, ast.Attribute) and field_of(code.program, size, module) is None
        if isinstance(size, ast.Attribute) and is_argument and size.attr == "world_size" and code.processes != 1:
            yield Finding(
                "warning",
                "fixed-world-size",
                module.where(call),
                f"{unparsed(size)} counts nodes, but each of them starts {unparsed(several[0])} processes",
                "multiply it: world_size = args.world_size * processes_per_node",
            )
            return


def _processes_of_a_node(code: Code) -> Iterator[Finding]:
    """Yield an error where the world size is the number of processes that mp.spawn starts on each node."""
    counts = [(home, argument(call, "nprocs", _SPAWN_ARGUMENTS)) for home, call in code.calls(*SPAWNS)]
    started = [_made_of(code, count, home) for home, count in counts if count is not None]
    for module, call in code.calls(INIT):
        size = argument(call, "world_size", _WORLD_SIZE)
        made = _made_of(code, size, module) if size is not None and not is_count(code.values.of(size, module)) else ()
        if made and made in started:
            yield Finding(
                code.level_of(call, module),
                "fixed-world-size",
                module.where(call),
                f"world_size={unparsed(size or call)} is the number of processes that each node starts, but the job "
                f"has {code.facts.nodes} nodes",
                "world_size counts the processes of all nodes: multiply it by the number of nodes",
            )
            return


def _made_of(code: Code, node: ast.expr, module: Module) -> set[ast.AST]:
    """Return what a number is computed from, without the variables that hold it in between."""
    return {part for _, part in origins(code, node, module) if not isinstance(part, (ast.Name, ast.Attribute))}
