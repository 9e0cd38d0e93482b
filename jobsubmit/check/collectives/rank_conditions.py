"""Conditions about ranks: what holds on rank 0 only, and what leaves the way of the others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from types import NoneType

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.branches import leaves, leaves_at_last
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import FUNCTIONS, Module, returned_values, spelled, unparsed
from jobsubmit.check.program.objects import given_to_fields
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters, values_of_field

_RANK = re.compile(r"^(?:ddp_|dist_|distributed_|global_|local_|world_|node_)*rank$|^process_index$")
_OF_ENVIRONMENT = re.compile(
    r"(?:int\()?os\.(?:environ\[|environ\.get\(|getenv\()['\"](?:LOCAL_)?RANK['\"](?:, [^()]*)?[\])]\)?"
)
_OF_SEVERAL = re.compile(
    r"^(?:(?:is|use|using)_)?(?:dist(?:ributed)?|ddp|distributed_training|multi_?gpu|initialized|parallel)$"
)
_COUNTS = re.compile(r"iter|step|epoch|batch|count|num_|_num|loss|score|freq|interval|every|patience")
_MAIN = re.compile(
    r"^_?(is_)?(main|master|primary|chief|lead)(_process|_rank|_node|_worker|_proc)?$"
    r"|^_?is_(local_|world_)?(main_process|master|rank_?(zero|0)|process_zero|global_zero|rank0)$"
    r"|^_?(is_)?(rank_?(zero|0)|global_zero)$|^_?is_local_main_process$|^if_main_process$"
)
_DECORATORS = re.compile(r"(rank_?zero|rank_?0|main_process|master|main)_only$|^on_(local_)?main_process$")
_GETTERS = ("get_rank", "get_global_rank", "get_local_rank", "local_rank")
_DEEPEST = 3


def zero_side(test: ast.AST, code: Code, module: Module, depth: int = 0) -> bool | None:
    """Return whether a condition holds on rank 0 alone (True), on all others (False), or is about something else."""
    written = _side_as_written(test, code, module, depth)
    return _side_as_seen(test, code) if written is None and depth == 0 else written


def _side_as_seen(test: ast.AST, code: Code) -> bool | None:
    """Return the same, by what a condition was in the processes that were followed."""
    seen = [one.values.get(test, UNKNOWN) for one in code.followed]
    is_enough = len(seen) == code.world_size or (len(seen) > 2 and not code.names_parts_of_a_model)  # noqa: PLR2004
    if not seen or not is_enough or not all(isinstance(one, (bool, NoneType)) for one in seen):
        return None
    first, *others = map(bool, seen)
    return None if first in others else first


def _side_as_written(test: ast.AST, code: Code, module: Module, depth: int) -> bool | None:
    if depth > _DEEPEST:
        return None
    match test:
        case ast.UnaryOp(op=ast.Not()):
            inner = zero_side(test.operand, code, module, depth)
            return is_rank(test.operand, code, module) or (None if inner is None else not inner)
        case ast.BoolOp():
            return _side_of_several(test, code, module, depth)
        case ast.IfExp():
            return _side_of_choice(test, code, module, depth)
        case ast.Compare(ops=[op]):
            return _compared(test.left, op, test.comparators[0], code, module, depth)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
            test = ast.Attribute(owner, name, ast.Load())
    return _side_of_name(test, code, module, depth)


def _side_of_several(test: ast.BoolOp, code: Code, module: Module, depth: int) -> bool | None:
    """Return the same for conditions that are connected: those that say nothing here are left out."""
    decisive = isinstance(test.op, ast.And)
    rest = [item for item in test.values if _holds_everywhere(item, code, module) is not decisive]
    sides = [zero_side(item, code, module, depth) for item in rest]
    return sides[0] if len(rest) == 1 else decisive if decisive in sides else None


def _holds_everywhere(test: ast.expr, code: Code, module: Module) -> bool | None:
    """Return whether a condition holds, or does not, on every rank; None if that is not known.

    `not args.distributed` does not in a job with several processes.
    """
    known = code.values.truth(test, module)
    is_named = isinstance(test, ast.UnaryOp) and _OF_SEVERAL.search(_last_name(test.operand)) is not None
    return False if known is None and is_named and code.is_parallel else known


def _side_of_choice(choice: ast.IfExp, code: Code, module: Module, depth: int) -> bool | None:
    """Return the same for what is one of two things, or nothing: `Saver() if rank == 0 else None`."""
    if isinstance(choice.orelse, ast.Constant) and not choice.orelse.value:
        return zero_side(choice.test, code, module, depth)
    return _agreed(zero_side(item, code, module, depth) for item in (choice.body, choice.orelse))


def _side_of_name(test: ast.AST, code: Code, module: Module, depth: int) -> bool | None:
    """Return the same for a variable, by what it is set to, and for a function, by what it returns."""
    if isinstance(test, ast.Name) and (assigned := code.values.assigned(test, module)) is not None:
        return zero_side(assigned, code, module, depth + 1)
    takes_nothing = not isinstance(test, ast.Call) or not test.args
    if (takes_nothing or _last_name(test).startswith("is_")) and _MAIN.match(_last_name(test)):
        return None if isinstance(test, ast.Name) and _is_given_a_constant(test, code, module) else True
    if isinstance(test, ast.Attribute) and (values := _values_of(test.attr, code)):
        return _agreed(None if value is None else zero_side(value, code, home, depth + 1) for home, value in values)
    if isinstance(test, ast.Name):
        return _side_of_variable(test, code, module, depth, nothing=(None, False))
    return _answered(test, code, module, depth) if isinstance(test, (ast.Call, ast.Attribute)) else None


def _is_given_a_constant(name: ast.Name, code: Code, module: Module) -> bool:
    """Return whether a name is a parameter for which calls write True or False, the same on all ranks: `rank0=True`."""
    function = module.function_of(name)
    if function is None or name.id not in parameters(function) or (function, name.id) in module.stores:
        return False
    calls = code.program.calls_to(function, module)
    given = [(home, call) for home, call in calls if isinstance(given_for(call, function, name.id), ast.Constant)]
    return any(not _is_under_rank(call, home) for home, call in given)


def _is_under_rank(node: ast.AST, module: Module) -> bool:
    return any(isinstance(above, ast.If) and mentions_rank(above.test) for above in module.above(node))


def _values_of(field: str, code: Code) -> list[tuple[Module, ast.expr | None]]:
    """Return all that a field is set to, or given: `self.active = dist.get_rank() == 0`, `Place(rank == 0)`."""
    return [*values_of_field(code.program, field), *given_to_fields(code.program).get(field, ())]


def _side_of_object(node: ast.expr, op: ast.cmpop, code: Code, module: Module, depth: int) -> bool | None:
    """Return the same for an object that only some ranks have: `saver = Saver() if rank == 0 else None`."""
    if isinstance(node, ast.Name):
        side = _side_of_variable(node, code, module, depth, nothing=(None,))
    else:
        values = _values_of(node.attr, code) if isinstance(node, ast.Attribute) else []
        made = [(home, one) for home, one in values if not (isinstance(one, ast.Constant) and one.value is None)]
        side = _agreed(_side_of_made(value, code, home, depth) for home, value in made)
    return side if side is None or isinstance(op, ast.IsNot) else not side


def _side_of_variable(
    name: ast.Name, code: Code, module: Module, depth: int, nothing: tuple[object, ...]
) -> bool | None:
    """Return the same for a variable that others set to `nothing`: by what a parameter is given, or one branch sets."""
    scope = module.function_of(name)
    stores = module.stores.get((scope or module.tree, name.id), ())
    if depth > _DEEPEST:
        return None
    if not stores and scope is not None and name.id in parameters(scope):
        calls = code.program.calls_to(scope, module)
        given = [(home, given_for(call, scope, name.id)) for home, call in calls if code.reached.of(call, home)]
        return _agreed(_side_of_given(one, code, home, depth + 1, nothing) for home, one in given)
    values = [(store, assigned_to(store, module)) for store in stores]
    made = [(store, one) for store, one in values if not (isinstance(one, ast.Constant) and one.value in nothing)]
    if len(made) == len(values):
        return _side_of_made(code.values.assigned(name, module), code, module, depth)
    return _agreed(_side_of_branch(store, code, module, depth + 1) for store, _ in made)


def _side_of_given(
    node: ast.expr | None, code: Code, module: Module, depth: int, nothing: tuple[object, ...]
) -> bool | None:
    if isinstance(node, ast.Name):
        return _side_of_variable(node, code, module, depth, nothing)
    return _side_of_made(node, code, module, depth)


def _side_of_branch(node: ast.AST, code: Code, module: Module, depth: int) -> bool | None:
    """Return whether only rank 0 comes to a node, by the conditions around it."""
    inner = node
    for above in module.above(node):
        if isinstance(above, ast.If) and inner in above.body and zero_side(above.test, code, module, depth):
            return True
        inner = above
    return None


def _agreed(sides: Iterable[bool | None]) -> bool | None:
    """Return what all of some answers say; None where they differ, or there are none."""
    found = set(sides)
    return found.pop() if len(found) == 1 else None


def _side_of_made(made: ast.expr | None, code: Code, module: Module, depth: int) -> bool | None:
    """Return the same for what makes an object on some ranks, and None on others, also in a function."""
    if depth > _DEEPEST:
        return None
    if isinstance(made, ast.IfExp) and isinstance(made.orelse, ast.Constant) and made.orelse.value is None:
        return zero_side(made.test, code, module, depth + 1)
    if isinstance(made, ast.Name):
        return _side_of_made(code.values.assigned(made, module), code, module, depth + 1)
    found = code.program.called(made, module) if isinstance(made, ast.Call) else None
    if found is None or not isinstance(found[1], FUNCTIONS):
        return None
    return _agreed(_side_of_made(one, code, found[0], depth + 1) for one in returned_values(found[1]))


def _answered(node: ast.Call | ast.Attribute, code: Code, module: Module, depth: int) -> bool | None:
    """Return what a function or a property of the program that only returns a condition says of rank 0."""
    found = code.program.called(node, module) if isinstance(node, ast.Call) else code.program.property_of(node)
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    body = [node for node in found[1].body if not isinstance(node, ast.Expr)]
    returned = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    return None if returned is None else zero_side(returned, code, found[0], depth + 1)


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, code: Code, module: Module, depth: int) -> bool | None:
    if isinstance(op, (ast.Is, ast.IsNot)):
        return _side_of_object(left, op, code, module, depth)
    if is_rank(right, code, module):
        left, right = right, left
    if not is_rank(left, code, module):
        return None
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (ast.List, ast.Tuple, ast.Set)):
        values = {code.values.of(item, module) for item in right.elts}
        return isinstance(op, ast.In) if 0 in values and values <= {0, -1} else None
    is_text = _OF_ENVIRONMENT.fullmatch(unparsed(left)) is not None and not isinstance(left, ast.Call)
    is_text = is_text or unparsed(left).startswith(("os.environ.get", "os.getenv"))
    if not isinstance(right, ast.Constant) or code.values.of(right, module) != ("0" if is_text else 0):
        return None
    return {ast.Eq: True, ast.LtE: True, ast.NotEq: False, ast.Gt: False}.get(type(op))


def is_rank(node: ast.AST, code: Code, module: Module) -> bool:
    """Return whether an expression is the rank of a process, by its name or by what it is set to."""
    if isinstance(node, (ast.Call, ast.Subscript)) and _OF_ENVIRONMENT.fullmatch(unparsed(node)):
        return True
    if isinstance(node, ast.Call):
        return _last_name(node.func) in _GETTERS and not node.args
    if _is_set_to_rank(node, code, module):
        return True
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = str(node.slice.value) if node.slice.value == "rank" else ""  # config["rank"]
    if isinstance(node, ast.Attribute) and (found := code.program.property_of(node)) is not None:
        returned = returned_values(found[1])
        if len(returned) == 1 and isinstance(returned[0], ast.Call):
            return is_rank(returned[0], code, found[0])
    return _RANK.match(name.lower().lstrip("_")) is not None


def _is_set_to_rank(node: ast.AST, code: Code, module: Module) -> bool:
    """Return whether a variable or a field is only set to what gives a rank: `self.place = mesh.get_local_rank()`."""
    values: list[ast.expr | None] = []
    if isinstance(node, ast.Attribute):
        values = [value for _, value in values_of_field(code.program, node.attr)]
    elif isinstance(node, ast.Name):
        values = [code.values.assigned(node, module)]
    return bool(values) and all(
        isinstance(one, ast.Call) and _last_name(one.func) in _GETTERS and not one.args for one in values
    )


def mentions_rank(test: ast.AST) -> bool:
    names = [
        n.attr if isinstance(n, ast.Attribute) else n.id for n in walk(test) if isinstance(n, (ast.Name, ast.Attribute))
    ]
    return any(_RANK.match(name.lower().lstrip("_")) or name == "get_rank" or _MAIN.match(name) for name in names)


def _last_name(node: ast.AST) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return unparsed(target).rpartition(".")[2] if isinstance(target, (ast.Name, ast.Attribute)) else ""


def is_for_main_process_only(code: Code, function: ast.AST, module: Module) -> bool:
    """Return whether a decorator lets only rank 0 execute a function."""
    decorators = getattr(function, "decorator_list", ())
    return any(
        _DECORATORS.search(_last_name(decorator)) or _keeps_others_out(code, decorator, module)
        for decorator in decorators
    )


def _keeps_others_out(code: Code, decorator: ast.expr, module: Module) -> bool:
    """Return whether a decorator of the program calls what it decorates on rank 0 alone."""
    found = code.program.definition(code.program.name_of(decorator, module))
    if found is None or not isinstance(found[1], ast.FunctionDef) or not found[1].args.args:
        return False
    home, function = found[0], found[1]
    name = function.args.args[0].arg
    calls = [node for node in walk(function) if isinstance(node, ast.Call) and spelled(node.func) == name]
    return bool(calls) and all(_is_of_zero_alone(code, call, home) for call in calls)


def _is_of_zero_alone(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a node is in a condition that holds on rank 0 alone, or behind one that the others leave by."""
    inner = node
    for above in module.above(node):
        if isinstance(above, ast.If) and inner in above.body and zero_side(above.test, code, module) is True:
            return True
        block = getattr(above, "body", None)
        for before in block[: block.index(inner)] if isinstance(block, list) and inner in block else ():
            if isinstance(before, ast.If) and leaves_at_last(before.body):
                if zero_side(before.test, code, module) is False:
                    return True
        inner = above
    return False


def is_in_branch_of_zero(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a node is in a branch that only rank 0 takes."""
    inner = node
    for above in module.above(node):
        if isinstance(above, ast.If) and inner not in above.orelse and zero_side(above.test, code, module) is True:
            return True
        inner = above
    return False


def holds_on_rank_zero(code: Code, test: ast.expr | None, module: Module) -> bool:
    """Return whether a condition asks for nothing but the rank, and for what is known to hold."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return all(
        part is not None and (zero_side(part, code, module) is not None or code.values.truth(part, module) is True)
        for part in parts
    )


def is_guarded_by_rank(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether the rank decides in the same function whether a node is executed."""
    inner: ast.AST = node
    for above in module.above(node):
        if isinstance(above, (ast.If, ast.IfExp)) and _asks_for_rank(code, above.test, module):
            return True
        if isinstance(above, ast.For) and is_empty_for_others(code, above.iter, module):
            return True
        for block in (getattr(above, "body", None), getattr(above, "orelse", None)):
            if isinstance(block, list) and inner in block:
                before = block[: block.index(inner)]
                if any(
                    isinstance(one, ast.If)
                    and (leaves(one.body) or _only_waits(one.body))
                    and _asks_for_rank(code, one.test, module)
                    and code.values.truth(one.test, module) is not False
                    for one in before
                ):
                    return True
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        inner = above
    return False


def _only_waits(body: list[ast.stmt]) -> bool:
    """Return whether a block is nothing but a barrier: the other ranks come to what follows after rank 0 was there."""
    calls = [one.value.func for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]
    return len(calls) == len(body) and all(unparsed(call).endswith(("barrier", "wait_for_everyone")) for call in calls)


def is_empty_for_others(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a list has something on rank 0 alone: `self.callbacks = build(cfg) if is_main else []`."""
    made = last_value(node, module) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Attribute):
        values = values_of_field(code.program, node.attr)
        made = values[0][1] if len(values) == 1 else None
    is_empty = isinstance(made, ast.IfExp) and not getattr(made.orelse, "elts", [made])
    return is_empty and zero_side(made.test, code, module) is True  # type: ignore[union-attr] # it is a choice


def _asks_for_rank(code: Code, test: ast.expr, module: Module) -> bool:
    if zero_side(test, code, module) is not None or mentions_rank(test):
        return True
    if any(_is_compared_with_zero(node) for node in walk(test)):
        return True  # `gpu_id == 0`, whatever it is called
    for name in (node for node in walk(test) if isinstance(node, ast.Name)):
        if any(map(mentions_rank, _given_for(code, name, module))):
            return True
        stores = module.stores.get((module.function_of(name) or module.tree, name.id), ())
        for store in stores:
            values = (above.value for above in module.above(store) if isinstance(above, ast.Assign))
            if isinstance(module.parents.get(store), ast.Tuple):  # results of a function that is given its GPU, too
                values = (value for value in values if not isinstance(value, ast.Call))
            known = list(values)
            if any(map(mentions_rank, known)) or _is_in_branch_of_rank(code, store, module):
                return True
            if any(_returns_by_rank(code, value, module) for value in known):
                return True
    return False


def _returns_by_rank(code: Code, value: ast.expr, module: Module) -> bool:
    """Return whether a value is what a function returns, and the rank decides in it whether it returns anything."""
    found = code.program.called(value, module) if isinstance(value, ast.Call) else None
    if found is None or not isinstance(found[1], FUNCTIONS):
        return False
    returns = [one for one in walk(found[1]) if isinstance(one, ast.Return)]
    with_value = [one for one in returns if one.value is not None and not _is_none(one.value)]
    is_open = len(with_value) < len(returns) or not isinstance(found[1].body[-1], ast.Return)
    return is_open and bool(with_value) and all(_is_in_branch_of_rank(code, one, found[0]) for one in with_value)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _given_for(code: Code, name: ast.Name, module: Module) -> list[ast.expr]:
    """Return what all calls of a function give for a parameter: `make_folder(path, debug=rank != 0)`."""
    function = module.function_of(name)
    if function is None or name.id not in parameters(function):
        return []
    calls = code.program.calls_to(function, module)
    return [given for _, call in calls if (given := given_for(call, function, name.id)) is not None]


def _is_compared_with_zero(node: ast.AST) -> bool:
    """Return whether something is compared with 0 that may be a rank: not every so many steps, as `step % 10`.

    What is called a count is none, either: `iter_num > 0`.
    """
    if not isinstance(node, ast.Compare) or isinstance(node.left, ast.BinOp):
        return False
    if _COUNTS.search(spelled(node.left).lower()):
        return False
    last = node.comparators[-1]
    return isinstance(last, ast.Constant) and last.value == 0


def _is_in_branch_of_rank(code: Code, node: ast.AST, module: Module) -> bool:
    tests = (above.test for above in module.above(node) if isinstance(above, ast.If))
    return any(zero_side(test, code, module) is not None or mentions_rank(test) for test in tests)
