"""The rank among all processes as the number of a GPU, which counts on one node only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.agent import node_contract as contract
from jobsubmit.check.code import INIT, Code
from jobsubmit.check.origins import origins, parts_returned
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import Module, class_around, spelled, unparsed
from jobsubmit.check.program.objects import fields_of, given_to_fields
from jobsubmit.check.program.operations import Several
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.check.start.device_of_call import (
    DEEPEST,
    begins_with_cuda,
    mapped_device,
    number_in_text,
    numbers_of_devices,
    values_returned_by,
)
from jobsubmit.common.finding import Finding

_TIMES_RANK = re.compile(r"(?:node_)?rank \* |\* (?:\w+\.)?(?:node_)?rank\b")
_GET_RANK = ("torch.distributed.get_rank", "deepspeed.comm.get_rank")


def by_global_rank(code: Code) -> Iterator[Finding]:
    if code.facts.nodes == 1 or code.processes == 1:
        return
    if not code.facts.has_launcher:
        yield from _by_rank_of_spawned(code)
        return
    yield from _named_by_global_rank(code)
    for module, call, name in code.reached.calls:
        mapped = mapped_device(code, call, module)
        for chosen in (*numbers_of_devices(call, name), *([mapped] if mapped is not None else [])):
            if _is_global_rank(code, chosen, module) and not _is_only_kept(code, call, module):
                last = code.facts.nodes * (code.processes or 1) - 1
                result = "the processes of the second node would use GPUs that it does not have"
                if code.processes is not None:
                    has = code.facts.gpus or code.processes
                    result = f"rank {last} would use cuda:{last}, but a node has {has}"
                yield Finding(
                    code.level_of(call, module),
                    "rank-as-device",
                    module.where(chosen),
                    f"{unparsed(chosen)} is the rank among all processes but is used as the GPU number on one node: "
                    f"{result}",
                    'use the local rank: int(os.environ["LOCAL_RANK"])',
                )
                return


def _is_only_kept(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a device is an attribute of an object that its class never uses: `self.device = …`."""
    above = module.parents.get(call)
    target = above.targets[0] if isinstance(above, ast.Assign) else None
    owner = class_around(call, module)
    if not isinstance(target, ast.Attribute) or spelled(target.value) != "self" or owner is None:
        return False
    name = owner.name.lower()
    loads = (node for _, node in code.program.of(ast.Attribute) if node.attr == target.attr)
    uses = (spelled(node.value) for node in loads if isinstance(node.ctx, ast.Load))
    return not any(use == "self" or use.rpartition(".")[2].replace("_", "").lower() in name for use in uses)


def _by_rank_of_spawned(code: Code) -> Iterator[Finding]:
    """Yield a warning for `node_rank * n + local_rank` as the number of a device, where processes are spawned."""
    for module, call, name in code.reached.calls:
        for chosen in numbers_of_devices(call, name):
            if isinstance(chosen, ast.BinOp):
                continue
            is_of_group = _asks_group(code, chosen, module)
            if is_of_group or _is_sum_with_rank(code, chosen, module) or _joins_as(code, chosen, module):
                yield Finding(
                    "warning",
                    "rank-as-device",
                    module.where(chosen),
                    f"{unparsed(chosen)} is the rank among all processes but is used as the GPU number on one node",
                    "use the number of the process on its node, which mp.spawn passes first",
                )
                return


def _asks_group(code: Code, number: ast.expr, module: Module, depth: int = 0) -> bool:
    """Return whether a number is the rank in the group of all processes: `dist.get_rank()`."""
    if _is_get_rank(code, number, module):
        return True
    sources = _sources_of_rank(code, number, module) if depth < DEEPEST else []
    return bool(sources) and all(_asks_group(code, source, home, depth + 1) for home, source in sources)


def _is_get_rank(code: Code, node: ast.AST, module: Module) -> bool:
    is_asked = isinstance(node, ast.Call) and code.program.name_of(node.func, module) in _GET_RANK
    return is_asked and not node.args and not node.keywords  # type: ignore[attr-defined] # it is a call


def _joins_as(code: Code, number: ast.AST, module: Module) -> bool:
    """Return whether a process of several on a node joins the group under the number that it takes for its GPU's."""
    inits = (call for home, call in code.calls(INIT) if home is module)
    ranks = [argument(call, "rank", 4) for call in inits if module.scope_of(call) is module.scope_of(number)]
    sources = origins(code, number, module) if isinstance(number, ast.Name) else ()
    is_sum = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add) for _, part in sources)
    return is_sum and any(rank is not None and spelled(rank) == spelled(number) for rank in ranks)


def _is_sum_with_rank(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether a number is `node_rank * n + local_rank`, by what it is set to."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and bool(_TIMES_RANK.search(unparsed(node)))
    sources = _sources_of_rank(code, node, module) if depth < DEEPEST else []
    return bool(sources) and all(_is_sum_with_rank(code, source, home, depth + 1) for home, source in sources)


def _named_by_global_rank(code: Code) -> Iterator[Finding]:
    """Yield a warning for a name such as f"cuda:{rank}" that is put together where its use is not seen."""
    for module, node in code.program.of(ast.JoinedStr, ast.BinOp, ast.Call):
        parent = module.parents.get(node)
        number = number_in_text(node) if isinstance(parent, ast.Assign) and begins_with_cuda(node) else None
        if number is None or not isinstance(parent, ast.Assign) or not code.reached.of(parent, module):
            continue
        if _is_global_rank(code, number, module) and not _is_taken_once(code, parent, module):
            yield Finding(
                "warning",
                "rank-as-device",
                module.where(node),
                f"{unparsed(number)} is the rank among all processes but is used as the GPU number on one node",
                'use the local rank: int(os.environ["LOCAL_RANK"])',
            )
            return


def _is_taken_once(code: Code, statement: ast.Assign, module: Module) -> bool:
    """Return whether the variable is set here only: then what uses it is judged."""
    target = statement.targets[0]
    return isinstance(target, ast.Name) and code.values.assigned(target, module) is not None


def _is_global_rank(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether an expression is the rank among the processes of all nodes."""
    value = code.values.of(node, module)
    if isinstance(value, Several) and value == code.facts.rank:
        return True
    if isinstance(node, ast.Subscript) and code.program.name_of(node.value, module) == "os.environ":
        return bool(code.values.of(node.slice, module) == contract.RANK)
    if isinstance(node, ast.Call):
        name = code.program.name_of(node.func, module)
        if name in ("os.environ.get", "os.getenv") and node.args:
            return bool(code.values.of(node.args[0], module) == contract.RANK)
        if _is_get_rank(code, node, module):
            return True
    sources = _sources_of_rank(code, node, module) if depth < DEEPEST else []
    if not sources and isinstance(node, ast.Attribute):
        is_of_accelerate = node.attr == "process_index" and code.program.imports("accelerate")
        return is_of_accelerate or _is_named_like_global(node, module)
    return bool(sources) and all(_is_global_rank(code, source, home, depth + 1) for home, source in sources)


def _is_named_like_global(field: ast.Attribute, module: Module) -> bool:
    """Return whether a field is called `rank` in a record that has a `local_rank`, too."""
    owner = class_around(field, module)
    names = set(fields_of(owner)) if owner is not None else set()
    return field.attr == "rank" and spelled(field.value) == "self" and {"rank", "local_rank"} <= names


def _sources_of_rank(code: Code, node: ast.AST, module: Module) -> list[tuple[Module, ast.expr]]:
    """Return the expressions that a number is taken from: what it is converted from, set to, given or returned by."""
    if isinstance(node, ast.Call):
        name = code.program.name_of(node.func, module)
        is_conversion = name in ("int", "str") and len(node.args) == 1
        returned = [
            (home, value) for home, value in values_returned_by(code, name) if not isinstance(value, ast.Constant)
        ]
        return [(module, node.args[0])] if is_conversion else returned
    if isinstance(node, ast.BoolOp):
        return [(module, node.values[0])]
    if isinstance(node, ast.Attribute):
        return _set_in_module(code, node, module) or _stored(code, node.attr)
    if not isinstance(node, ast.Name):
        return []
    assigned = code.values.assigned(node, module)
    given = _given(code, node, module) if assigned is None else (module, assigned)
    return [given] if given else []


def _set_in_module(code: Code, node: ast.Attribute, module: Module) -> list[tuple[Module, ast.expr]]:
    """Return what the functions of another module set its variable to, which they declare global; no constants."""
    owner, _, name = code.program.name_of(node, module).rpartition(".")
    home = code.program.modules.get(owner)
    stores = home.own_stores.get((home.tree, name), ()) if home is not None else ()
    values = [assigned_to(store, home) for store in stores if home is not None]
    if home is None or any(value is None for value in values):
        return []
    return [(home, value) for value in values if not isinstance(value, (ast.Constant, ast.UnaryOp, type(None)))]


def _stored(code: Code, attribute: str) -> list[tuple[Module, ast.expr]]:
    """Return the values that an attribute is set to or given, wherever that is, constants left out."""
    given = given_to_fields(code.program).get(attribute, ())
    found = [(home, value) for home, value in given if not isinstance(value, ast.Constant)]
    for module, node in code.program.attribute_stores.get(attribute, ()):
        value = assigned_to(node, module)
        values = [(module, value)] if value is not None else parts_returned(code, node, module)
        if not values:
            return []
        if code.reached.of(node, module):
            found += [(home, one) for home, one in values if not isinstance(one, ast.Constant)]
    return found


def _given(code: Code, name: ast.Name, module: Module) -> tuple[Module, ast.expr] | None:
    """Return what a parameter is given, if all calls of its function say it in the same words."""
    for scope in module.above(name):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if name.id not in parameters(scope):
                continue
            calls = code.program.calls_to(scope, module)
            if not calls and scope.name == "__init__":
                calls = _makes_by_variable(code, name.id)
            values = [(home, value) for home, call in calls if (value := given_for(call, scope, name.id)) is not None]
            words = {(home.name, unparsed(value)) for home, value in values}
            return values[0] if len(values) == len(calls) and len(words) == 1 else None
    return None


def _makes_by_variable(code: Code, parameter: str) -> list[tuple[Module, ast.Call]]:
    """Return the calls of a class that a variable holds, which give a parameter of this name by name."""
    return [
        (module, call)
        for module, call, name in code.reached.calls
        if isinstance(call.func, ast.Name)
        and code.program.definition(name) is None
        and (module.scope_of(call), call.func.id) in module.stores
        and any(keyword.arg == parameter for keyword in call.keywords)
    ]
