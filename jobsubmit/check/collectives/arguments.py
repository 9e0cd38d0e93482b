"""What collectives are given: tensors on the right device, lists of the right length, one source for all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import Code, is_count
from jobsubmit.check.collectives.all_ranks import is_for_all
from jobsubmit.check.collectives.rank_conditions import is_rank
from jobsubmit.check.origins import last_value, origins, seen_through, set_to, words_of
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.module import FUNCTIONS, Module, class_around, is_of_self, spelled, unparsed
from jobsubmit.check.program.objects import fields_of
from jobsubmit.check.program.operations import UNKNOWN, Several
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, is_load, parameters, position
from jobsubmit.common.finding import Finding

_PACKAGE = "torch.distributed."
_TENSOR = {"all_reduce": 0, "broadcast": 0, "reduce": 0, "gather": 0, "all_gather": 1, "all_gather_into_tensor": 1}
_LIST = {
    "all_gather": ("tensor_list", 0),
    "all_gather_object": ("object_list", 0),
    "gather": ("gather_list", 1),
    "gather_object": ("object_gather_list", 1),
}
_GROUP = {"broadcast": 2, "broadcast_object_list": 2, "reduce": 3, "gather": 3}
_ROOT = {"broadcast": ("src", 1), "broadcast_object_list": ("src", 1), "reduce": ("dst", 1), "gather": ("dst", 2)}
_NEEDS_ROOT = ("broadcast", "reduce")
_MAKES_TENSOR = tuple(
    f"torch.{name}"
    for name in (
        "tensor",
        "zeros",
        "ones",
        "full",
        "empty",
        "rand",
        "randn",
        "randint",
        "randperm",
        "arange",
        "from_numpy",
        "ByteTensor",
        "IntTensor",
        "LongTensor",
        "FloatTensor",
    )
)
_PUTS_TOGETHER = ("torch.cat", "torch.stack", "torch.concat")
_KEEPS_DEVICE = (
    *("float", "double", "half", "long", "int", "detach", "clone", "contiguous"),
    *("view", "unsqueeze", "sum", "mean"),
)
_NUMBERS = ("float", "int", "len")
_WAITS = frozenset(["wait", "wait_all", "synchronize", "is_completed", "get_future"])
_OF_LAUNCHER = re.compile(r"int\(os\.(?:environ\[|environ\.get\(|getenv\()['\"](?:LOCAL_)?RANK['\"][^()]*[\])]\)")
_DEEPEST = 3
_PARTS_OF_MODEL = re.compile(r"(?:tensor_)?(?:model_)?parallel_size|tp_size|mp_size")
_GROUPS_OF_LIBRARY = ("get_data_parallel_group", "get_model_parallel_group", "get_tensor_model_parallel_group")


def check_collective_arguments(code: Code) -> Iterator[Finding]:
    """Yield what makes a collective fail or give wrong results; the first of each kind."""
    calls = [
        (module, call, name.removeprefix(_PACKAGE))
        for module, call, name in code.program.calls
        if name.startswith(_PACKAGE) and not hides_arguments(call) and _is_used(code, call, module)
    ]
    for check in (_not_a_tensor, _on_cpu, _wrong_length, _other_roots, _foreign_root, _other_groups, _not_awaited):
        yield from next(([finding] for one in calls for finding in check(code, *one)), [])


def _is_used(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call may be executed.

    Where methods are looked up by their names, or a library calls them, it need not be seen how.
    """
    function = module.function_of(call)
    is_entered = function is not None and bool(code.reached.entered(function, module))
    is_open = code.looks_up_names or code.has_framework
    may_be_used = is_open and not is_entered and code.may_be_used(call, module)
    return may_be_used or bool(code.reached.of(call, module))


def _finding(code: Code, module: Module, call: ast.Call, check: str, text: str, hint: str) -> Finding:
    return Finding(code.level_of(call, module), check, module.where(call), text, hint)


def _tensor_of(call: ast.Call, name: str, module: Module) -> ast.expr | None:
    """Return the expression that makes the tensor of a collective, as far as that is clear."""
    given = argument(call, "input_tensor" if name == "all_gather_into_tensor" else "tensor", _TENSOR[name])
    return seen_through(given, module)


def _not_a_tensor(code: Code, module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    made = _tensor_of(call, name, module) if name in _TENSOR else None
    given = argument(call, "tensor", _TENSOR[name]) if name in _TENSOR else None
    if isinstance(given, ast.Name) and (_is_counter(given, module) or _is_one_of_counters(given, module)):
        text = f"{name}() is given {given.id}, which is a number and no tensor"
        hint = f"make a tensor of it first: torch.tensor({given.id}, device=…)"
        yield _finding(code, module, call, "not-a-tensor", text, hint)
    if isinstance(given, ast.Name) and not isinstance(made, ast.Call):
        made = _number_given(code, given, module)
    if not isinstance(made, ast.Call):
        return
    is_item = isinstance(made.func, ast.Attribute) and made.func.attr in ("item", "tolist")
    if is_item or (isinstance(made.func, ast.Name) and made.func.id in _NUMBERS):
        text = f"{name}() is given {unparsed(made)}, which is no tensor"
        yield _finding(code, module, call, "not-a-tensor", text, "pass a tensor, and call .item() on the result")


def _number_given(code: Code, name: ast.Name, module: Module) -> ast.expr | None:
    """Return what the calls of a function give for its parameter, if all of them give numbers."""
    function = module.function_of(name)
    if function is None or name.id not in parameters(function) or (function, name.id) in module.stores:
        return None
    calls = code.program.calls_to(function, module)
    given = [given_for(call, function, name.id) for home, call in calls if code.reached.of(call, home)]
    return given[0] if given and all(one is not None and _is_number(one) for one in given) else None


def _is_counter(name: ast.Name, module: Module) -> bool:
    """Return whether a variable begins with a number, and only numbers are added to it, in the same function."""
    values: list[ast.expr | None] = []
    for store in module.stores.get((module.scope_of(name), name.id), ()):
        parent = module.parents.get(store)
        values.append(parent.value if isinstance(parent, ast.AugAssign) else assigned_to(store, module))
    return bool(values) and all(value is not None and _is_number(value) for value in values)


def _is_one_of_counters(name: ast.Name, module: Module) -> bool:
    """Return whether a variable goes through some variables that are numbers: `for figure in (right, seen)`."""
    loops = (above for above in module.above(name) if isinstance(above, ast.For))
    loop = next((one for one in loops if isinstance(one.target, ast.Name) and one.target.id == name.id), None)
    items = loop.iter.elts if loop is not None and isinstance(loop.iter, (ast.Tuple, ast.List)) else []
    return any(isinstance(item, ast.Name) and _is_counter(item, module) for item in items)


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr == "item"
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _NUMBERS


def _on_cpu(code: Code, module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    needs_gpu = code.is_on_nccl_only and code.facts.gpus != 0
    made = _tensor_of(call, name, module) if needs_gpu and name in _TENSOR else None
    if isinstance(made, ast.Attribute):
        made = _only_value(code, made, module)
    given = argument(call, "tensor", _TENSOR[name]) if needs_gpu and name in _TENSOR and made is None else None
    tensor = given if isinstance(given, ast.Name) else made
    if tensor is None or argument(call, "group") is not None:
        return
    seen = unparsed(made or given or call)
    if not _is_always_on_cpu(code, tensor, module, frozenset()):
        outer = _giving_from_cpu(code, call, tensor, module)
        if outer is None:
            return
        module, call, seen = outer[0], outer[1], unparsed(outer[1])
    text = f"{name}() is given a tensor on the CPU ({seen}), and NCCL communicates on GPUs only"
    yield _finding(code, module, call, "tensor-on-cpu", text, "move it to the GPU: .cuda(), or device=…")


def _giving_from_cpu(code: Code, call: ast.Call, tensor: ast.expr, module: Module) -> tuple[Module, ast.Call] | None:
    """Return a call that gives a tensor on the CPU to the function which hands its parameter to a collective."""
    function, named = module.function_of(call), tensor
    while isinstance(named, ast.Name) and (before := last_value(named, module)) is not None:
        named = before
    if function is None or not isinstance(named, ast.Name) or named.id not in parameters(function):
        return None
    for home, outer in code.program.calls_to(function, module):
        given = given_for(outer, function, named.id) if code.reached.of(outer, home) else None
        if given is not None and _is_always_on_cpu(code, given, home, frozenset()):
            return home, outer
    return None


def _is_always_on_cpu(code: Code, node: ast.expr, module: Module, known: frozenset[str]) -> bool:
    """Return whether a tensor is on the CPU whatever its variable is set to.

    What is put together from others is where each of them is: torch refuses a mixture.
    """
    if not isinstance(node, ast.Name):
        is_joined = isinstance(node, ast.Call) and code.program.name_of(node.func, module) in _PUTS_TOGETHER
        items = argument(node, "tensors", 0) if isinstance(node, ast.Call) and is_joined else None
        if isinstance(items, (ast.Tuple, ast.List)):
            return any(_is_always_on_cpu(code, one, module, known) for one in items.elts)
        return _is_on_cpu(code, node, module)
    if node.id in known:
        return True
    if (last := last_value(node, module)) is not None:
        return _is_always_on_cpu(code, last, module, known)
    stores = module.own_stores.get((module.scope_of(node), node.id), ())
    values = [assigned_to(store, module) for store in stores if position(store) < position(node)]
    known |= {node.id}
    return bool(values) and all(one is not None and _is_always_on_cpu(code, one, module, known) for one in values)


def _only_value(code: Code, field: ast.Attribute, module: Module) -> ast.expr | None:
    """Return what a field of a class without a base is set to in its methods, if that happens in one place.

    What is added to it keeps it where it is.
    """
    owner = class_around(field, module)
    stores = [
        (home, store)
        for home, store in code.program.attribute_stores.get(field.attr, ())
        if not isinstance(home.parents.get(store), ast.AugAssign)
    ]
    if owner is None or owner.bases or spelled(field.value) != "self" or len(stores) != 1:
        return None
    home, store = stores[0]
    value = assigned_to(store, home)
    return value if class_around(store, home) is owner and isinstance(value, ast.expr) else None


def _is_on_cpu(code: Code, made: ast.expr, module: Module) -> bool:
    if isinstance(made, ast.IfExp):
        return _is_on_cpu(code, made.body, module) and _is_on_cpu(code, made.orelse, module)
    if not isinstance(made, ast.Call) or hides_arguments(made):
        return False
    if isinstance(made.func, ast.Attribute) and made.func.attr == "cpu" and not made.args:
        return True
    if (
        isinstance(made.func, ast.Attribute)
        and made.func.attr in _KEEPS_DEVICE
        and isinstance(made.func.value, (ast.Call, ast.IfExp))
    ):
        return _is_on_cpu(code, made.func.value, module)
    place = argument(made, "device")
    if isinstance(place, ast.Call) and code.program.name_of(place.func, module) == "torch.device":
        place = argument(place, "type", 0)
    is_left_there = place is None or code.values.of(place, module) in ("cpu", None)
    return code.program.name_of(made.func, module) in _MAKES_TENSOR and is_left_there


def _wrong_length(code: Code, module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    given = argument(call, *_LIST[name]) if name in _LIST else None
    if argument(call, "group", 3 if name.startswith("gather") else 2) is not None or not code.world_size:
        return
    made = seen_through(given, module)
    length = _length(code, made, module) if made is not None else UNKNOWN
    if made is not None and length is UNKNOWN and code.facts.nodes > 1 and _counts_on_node(code, made, module):
        text = f"the list for {name}() is as long as one node has processes, but the job has {code.facts.nodes} nodes"
        yield _finding(code, module, call, "fixed-world-size", text, "make it as long as dist.get_world_size()")
    if is_count(length) and length not in (0, code.world_size):
        text = f"the list for {name}() has {length} places, but the job has {code.world_size} processes"
        yield _finding(code, module, call, "fixed-world-size", text, "make it as long as dist.get_world_size()")


def _counts_on_node(code: Code, made: ast.expr, module: Module) -> bool:
    """Return whether a comprehension is as long as a node has GPUs or processes, by what its range is computed from."""
    numbers = made.generators[0].iter if isinstance(made, ast.ListComp) else None
    text = words_of(code, numbers, module) if isinstance(numbers, ast.Call) else ""
    if contract.LOCAL_WORLD_SIZE in text:
        return not re.search(r"get_world_size|nnodes|num_nodes|[\"']WORLD_SIZE|\*", text)
    return "torch.cuda.device_count()" in text and not re.search("world|nnodes|num_nodes", text, re.IGNORECASE)


def _length(code: Code, made: ast.expr, module: Module) -> Any:
    """Return how long a list is that a comprehension or a multiplication makes."""
    if isinstance(made, ast.ListComp) and len(made.generators) == 1 and not made.generators[0].ifs:
        numbers = code.values.of(made.generators[0].iter, module)
        return len(numbers) if isinstance(numbers, list) else UNKNOWN
    if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Mult) and isinstance(made.left, ast.List):
        return code.values.of(made.right, module) if len(made.left.elts) == 1 else UNKNOWN
    return UNKNOWN


def _other_roots(code: Code, module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    root = argument(call, *_ROOT[name]) if name in _ROOT else None
    is_of_all = root is not None and argument(call, "group") is None
    value = code.values.of(root, module) if root is not None and is_of_all else UNKNOWN
    is_own = root is not None and name.startswith("broadcast") and _is_own_rank(code, root, module)
    is_own = (is_own or _is_rank_of_environment(code, root, module)) and is_for_all(code, call, module)
    if name in _NEEDS_ROOT and root is None and argument(call, f"group_{_ROOT[name][0]}") is None:
        if not hides_arguments(call):
            text = f"{name}() names no rank: {_ROOT[name][0]} has no default, and the call fails"
            yield _finding(code, module, call, "other-roots", text, f"name one rank, such as {_ROOT[name][0]}=0")
    elif root is not None and (isinstance(value, Several) or is_own) and not _is_in_turn(call, root, module):
        text = f"{unparsed(root)} differs between the processes: all of them must name the same rank in {name}()"
        yield _finding(code, module, call, "other-roots", text, "name one rank, such as 0")
    elif is_count(value) and code.world_size and value >= code.world_size:
        text = f"{name}() names rank {value}, but the last one of this job is {code.world_size - 1}"
        yield _finding(code, module, call, "other-roots", text, "name a rank of the job, such as 0")


def _is_in_turn(call: ast.Call, root: ast.expr, module: Module) -> bool:
    """Return whether a call is for the turn of its own rank: `reduce(x, rank) if i == rank else reduce(y, i)`."""
    tests = (above.test for above in module.above(call) if isinstance(above, (ast.If, ast.IfExp)))
    return any(
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.Eq, ast.NotEq))
        and unparsed(root) in (unparsed(test.left), unparsed(test.comparators[0]))
        and not any(isinstance(side, ast.Constant) for side in (test.left, test.comparators[0]))
        for test in tests
    )


def _foreign_root(code: Code, module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    """Yield a warning for one rank that is named to all groups, of which a loop makes several without common ranks."""
    group = argument(call, "group", _GROUP[name]) if name in _GROUP else None
    root = argument(call, *_ROOT[name]) if name in _GROUP else None
    value = code.values.of(root, module) if root is not None and group is not None else UNKNOWN
    if is_count(value) and group is not None and _is_one_of_many(code, group, module):
        text = f"rank {value} is in one of these groups only, and src and dst are ranks of the whole job"
        hint = "name the first rank of the group: dist.get_global_rank(group, 0); or pass group_src=0"
        yield Finding("warning", "other-roots", module.where(call), text, hint)


def _is_one_of_many(code: Code, group: ast.AST, module: Module) -> bool:
    """Return whether there are several groups like this: a loop makes them, or a library for models in parts."""
    parts = [(home, part) for home, part in origins(code, group, module) if isinstance(part, ast.Call)]
    makers = [(home, part) for home, part in parts if code.program.name_of(part.func, home) == f"{_PACKAGE}new_group"]
    if makers:
        return all(_depends_on_loop(code, call, home) for home, call in makers)
    sizes = [value for name, value in code.values.arguments.items() if _PARTS_OF_MODEL.fullmatch(name)]
    is_split = any(is_count(size) and 1 < size < (code.world_size or 0) for size in sizes)
    return is_split and any(spelled(part.func).endswith(_GROUPS_OF_LIBRARY) for _, part in parts)


def _depends_on_loop(code: Code, call: ast.Call, module: Module) -> bool:
    ranks = argument(call, "ranks", 0)
    loop = next((above for above in module.above(call) if isinstance(above, ast.For)), None)
    if ranks is None or loop is None or not isinstance(loop.target, ast.Name):
        return False
    made = seen_through(ranks, module)
    return made is not None and any(is_load(node, loop.target.id) for node in walk(made))


def _is_own_rank(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether an expression is the rank of the process among all, by what it is set to."""
    if isinstance(node, ast.Call):
        return code.program.name_of(node.func, module) == f"{_PACKAGE}get_rank" and not node.args and not node.keywords
    values = set_to(code, node, module)
    is_known = bool(values) and depth < _DEEPEST
    return is_known and all(one is not None and _is_own_rank(code, one, home, depth + 1) for home, one in values)


def _is_rank_of_environment(code: Code, root: ast.AST | None, module: Module) -> bool:
    """Return whether a number is the rank that the launcher gives, and nothing else, by all that it is made of."""
    given = list(_field_given(code, root, module)) if isinstance(root, ast.Attribute) else []
    if given:
        return all(_is_rank_of_environment(code, value, home) for home, value in given)
    parts = [part for _, part in origins(code, root, module)] if root is not None else []
    is_plain = all(isinstance(part, (ast.Name, ast.Attribute, ast.Call)) for part in parts)
    texts = [unparsed(part) for part in parts if isinstance(part, ast.Call)]
    return is_plain and bool(texts) and all(_OF_LAUNCHER.fullmatch(text) for text in texts)


def _field_given(code: Code, field: ast.Attribute, module: Module) -> Iterator[tuple[Module, ast.expr]]:
    """Yield what the calls of a dataclass give for a field, of the object whose field is read."""
    for home, part in origins(code, field.value, module):
        found = code.program.definition(code.program.name_of(part.func, home)) if isinstance(part, ast.Call) else None
        if found is None or not isinstance(part, ast.Call) or not isinstance(found[1], ast.ClassDef):
            continue
        fields = list(fields_of(found[1]))
        position = fields.index(field.attr) if field.attr in fields else None
        if position is not None and (given := argument(part, field.attr, position)) is not None:
            yield home, given


def _other_groups(code: Code, module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    """Yield a warning for a group whose ranks depend on the process, unless it is a group of its own rank alone."""
    ranks = argument(call, "ranks", 0) if name == "new_group" else None
    inner = [node for node in walk(ranks) if isinstance(node, ast.expr)] if ranks is not None else []
    in_loop = any(isinstance(above, (ast.For, ast.While, ast.ListComp)) for above in module.above(call))
    differs = any(isinstance(code.values.of(node, module), Several) for node in inner)
    is_own = isinstance(ranks, ast.List) and len(ranks.elts) == 1 and is_rank(ranks.elts[0], code, module)
    if not in_loop and not is_own and (differs or _depends_on_rank(code, ranks, module)):
        text = f"the ranks of this {name}() differ between the processes: all of them must make the same groups"
        hint = "make the groups of all nodes on every rank, in the same order, and keep the one that has this rank"
        yield Finding("warning", "other-groups", module.where(call), text, hint)


def _depends_on_rank(code: Code, ranks: ast.expr | None, module: Module) -> bool:
    """Return whether a list of ranks is computed from the rank of the process, through properties and variables."""
    for home, part in origins(code, ranks, module) if ranks is not None else ():
        own = {node.id for node in walk(part) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        for node in walk(part):
            if is_rank(node, code, home) and getattr(node, "id", "") not in own:
                return True
    return False


def _not_awaited(code: Code, module: Module, call: ast.Call, name: str) -> Iterator[Finding]:
    is_async = code.values.of(argument(call, "async_op"), module) is True
    statement = module.parents.get(call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    is_kept = isinstance(target, ast.Name) and any(is_load(node, target.id) for node in walk(module.scope_of(call)))
    is_lost = isinstance(statement, ast.Expr) or (isinstance(target, ast.Name) and not is_kept)
    is_lost = is_lost or (isinstance(target, ast.Name) and _is_lost_by_callers(code, target, module))
    is_lost = is_lost or (isinstance(statement, ast.Call) and _is_only_collected(code, statement, module))
    if is_async and (is_lost or not _waits(code)):
        text = f"nothing waits for this {name}(): with async_op=True the result may be used before it is there"
        yield Finding("warning", "not-awaited", module.where(call), text, "keep what it returns, and call wait() on it")


def _is_only_collected(code: Code, adding: ast.Call, module: Module) -> bool:
    """Return whether a call adds a handle to a list that nothing reads: `handles.append(dist.all_reduce(…))`."""
    function = adding.func
    if not isinstance(function, ast.Attribute) or function.attr != "append":
        return False
    scope = module.scope_of(adding)
    if isinstance(function.value, ast.Name):
        name = function.value.id
        is_own = isinstance(scope, FUNCTIONS) and (scope, name) in module.own_stores
        uses = [(module, node) for node in walk(scope) if is_load(node, name)]
        return is_own and all(_adds_or_clears(node, home) for home, node in uses)
    if not is_of_self(function.value):
        return False
    fields = code.program.of(ast.Attribute)
    reads = [(home, node) for home, node in fields if node.attr == function.value.attr]
    return all(_adds_or_clears(node, home) for home, node in reads if isinstance(node.ctx, ast.Load))


def _adds_or_clears(handles: ast.AST, module: Module) -> bool:
    above = module.parents.get(handles)
    return isinstance(above, ast.Attribute) and above.attr in ("append", "clear")


def _waits(code: Code) -> bool:
    """Return whether anything waits for some handle: a method `wait` that nothing calls does not."""
    if not _WAITS & code.names:
        return False
    uses = [(module, node) for module, node in code.program.of(ast.Attribute) if node.attr in _WAITS]
    functions = (module.function_of(node) for module, node in uses)
    return code.looks_up_names or not uses or any(one is None or one.name not in _WAITS for one in functions)


def _is_lost_by_callers(code: Code, handle: ast.Name, module: Module) -> bool:
    """Return whether a function only returns a handle, alone or as one of several, and no caller uses it."""
    function = module.function_of(handle)
    uses = [node for node in walk(function or handle) if is_load(node, handle.id)]
    if function is None or len(uses) != 1:
        return False
    above = module.parents.get(uses[0])
    index = above.elts.index(uses[0]) if isinstance(above, ast.Tuple) else None
    if not isinstance(module.parents.get(above) if isinstance(above, ast.Tuple) else above, ast.Return):
        return False
    calls = code.program.calls_to(function, module)
    return bool(calls) and all(_is_dropped(call, index, home) for home, call in calls)


def _is_dropped(call: ast.Call, index: int | None, module: Module) -> bool:
    """Return whether a part of what a call returns is never used: a variable that nothing reads, or none."""
    statement = module.parents.get(call)
    if isinstance(statement, ast.Expr):
        return True
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if index is not None:
        parts = target.elts if isinstance(target, ast.Tuple) else []
        target = parts[index] if index < len(parts) else None
    scope = module.scope_of(call)
    return isinstance(target, ast.Name) and not any(
        is_load(node, target.id) for node in walk(scope) if module.scope_of(node) is scope
    )
