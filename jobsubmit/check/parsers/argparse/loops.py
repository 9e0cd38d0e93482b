"""Options that a loop adds: one for each entry of a literal sequence or mapping."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import Module, class_around, spelled
from jobsubmit.check.program.objects import default_of_field, fields_of, given_by
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values
from jobsubmit.check.program.variables import parameters

_DEEPEST = 8
_MOST_ENTRIES = 500

Pair: TypeAlias = tuple[ast.expr, ast.expr]


@dataclass(frozen=True)
class Pass:
    """One pass of a loop that adds an option: the call, the values in it, and what was assigned before it."""

    call: ast.Call
    values: Values
    assigned: Mapping[str, ast.expr]


def passes(values: Values, call: ast.Call, module: Module) -> list[Pass] | None:
    """Return each pass of the loop around a call that reaches it; None if the entries are not literal."""
    loop = next((node for node in module.above(call) if isinstance(node, (ast.For, ast.FunctionDef, ast.Lambda))), None)
    if not isinstance(loop, ast.For):
        return None
    each = _bound_to_fields(values, loop, module) or _bound_to_entries(values, loop, module)
    if each is None or len(each) > _MOST_ENTRIES:
        return None
    found: list[Pass] = []
    for bound in each:
        if bound is None:
            return None
        with_entry = replace(values, bound={**values.bound, **bound})
        found += _reaching(loop.body, call, with_entry, module, {})
    return found


def names_of_option(values: Values, call: ast.Call, module: Module) -> tuple[Any, ...]:
    """Return the names that a call gives an option, with those of a list (`*flags`) in its place."""
    names: list[Any] = []
    for item in call.args:
        value = values.of(item.value if isinstance(item, ast.Starred) else item, module)
        names += value if isinstance(item, ast.Starred) and isinstance(value, (list, tuple)) else [value]
    return tuple(names)


def keywords_of(values: Values, call: ast.Call, module: Module) -> list[ast.keyword]:
    """Return the keywords of a call, with those of a mapping (`**settings`) in its place as far as it is known."""
    found: list[ast.keyword] = []
    for keyword in call.keywords:
        pairs = None if keyword.arg else _pairs(values, keyword.value, module, 0)
        named = [(values.of(key, module), value) for key, value in pairs or ()]
        if pairs is None or not all(isinstance(name, str) for name, _ in named):
            found.append(keyword)
        else:
            found += [ast.keyword(name, value) for name, value in named]
    return found


def type_name(one: Pass, node: ast.expr, module: Module) -> str:
    """Return the name of the type that an expression is, in one pass of a loop."""
    if isinstance(node, ast.Name) and node.id in one.assigned:
        return type_name(one, one.assigned[node.id], module)
    if (bound := one.values.bound.get(spelled(node))) is not None:
        return type_name(one, bound, module)
    if isinstance(node, ast.Call) and one.values.program.name_of(node.func, module) == "type" and node.args:
        value = one.values.of(node.args[0], module)
        return "?" if value is UNKNOWN else type(value).__name__
    return one.values.program.name_of(node, module) or "?"


def _reaching(
    body: Sequence[ast.stmt], call: ast.Call, values: Values, module: Module, assigned: dict[str, ast.expr]
) -> Iterator[Pass]:
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            assigned[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.If):
            truth = values.truth(statement.test, module)
            branches = (
                [statement.body, statement.orelse] if truth is None else [statement.body if truth else statement.orelse]
            )
            for branch in branches:
                yield from _reaching(branch, call, values, module, assigned)
        elif any(node is call for node in walk(statement)):
            yield Pass(call, values, dict(assigned))


def _bound_to_fields(values: Values, loop: ast.For, module: Module) -> list[dict[str, ast.expr] | None] | None:
    """Return what the loop `for f in fields(Config)` knows in each pass: `f.name`, `f.type` and `f.default`."""
    call, target = loop.iter, loop.target
    if not isinstance(call, ast.Call) or values.program.name_of(call.func, module) != "dataclasses.fields":
        return None
    owners = _classes(values, argument(call, "class_or_instance", 0), module)
    if not owners or not isinstance(target, ast.Name):
        return None
    each: list[dict[str, ast.expr] | None] = []
    for name, declared in (item for owner in owners for item in fields_of(owner).items()):
        default = default_of_field(declared.value)
        bound = {f"{target.id}.name": ast.Constant(name), f"{target.id}.type": declared.annotation}
        each.append(bound if default is None else {**bound, f"{target.id}.default": default})
    return each


def _classes(values: Values, node: ast.expr | None, module: Module) -> list[ast.ClassDef]:
    """Return the classes that a name means: of a parameter, those that all calls give; none if one is not known."""
    function = module.function_of(node) if isinstance(node, ast.Name) else None
    is_method = function is not None and isinstance(module.parents.get(function), ast.ClassDef)
    if isinstance(node, ast.Name) and function is not None and node.id in parameters(function) and not is_method:
        calls = values.program.calls_to(function, module)
        found = [_classes(values, given_for(call, function, node.id), home) for home, call in calls]
        return [owner for owners in found for owner in owners] if all(found) else []
    if isinstance(node, ast.Name) and node.id == "cls" and (own := class_around(node, module)) is not None:
        return [own]
    definition = values.program.definition(values.program.name_of(node, module)) if node is not None else None
    return [definition[1]] if definition is not None and isinstance(definition[1], ast.ClassDef) else []


def _bound_to_entries(values: Values, loop: ast.For, module: Module) -> list[dict[str, ast.expr] | None] | None:
    """Return what the variables of a loop hold in each pass; None for a pass that is not clear."""
    entries = _entries(values, loop.iter, module)
    return None if entries is None else [_bound(values, loop.target, entry) for entry in entries]


def _bound(values: Values, target: ast.expr, entry: ast.expr) -> dict[str, ast.expr] | None:
    """Return the variables of a loop with what they hold in one pass, and the fields of a named tuple in them."""
    if isinstance(target, ast.Name):
        fields = _fields_of_tuple(values, entry) if isinstance(entry, ast.Call) else {}
        return {target.id: entry, **{f"{target.id}.{name}": given for name, given in fields.items()}}
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(entry, (ast.Tuple, ast.List)):
        if len(target.elts) == len(entry.elts) and all(isinstance(item, ast.Name) for item in target.elts):
            return {
                item.id: value
                for item, value in zip(target.elts, entry.elts, strict=True)
                if isinstance(item, ast.Name)
            }
    return None


def _fields_of_tuple(values: Values, call: ast.Call) -> dict[str, ast.expr]:
    """Return what a call gives to the fields of a named tuple: `Option = namedtuple("Option", "flags type")`."""
    made = [
        node.value
        for module, node in values.program.of(ast.Assign)
        if spelled(node.targets[0]) == spelled(call.func) and isinstance(node.value, ast.Call)
        if values.program.name_of(node.value.func, module) == "collections.namedtuple"
    ]
    names = made[0].args[1] if len(made) == 1 and len(made[0].args) > 1 else None
    match names:
        case ast.Constant(value=str(text)):
            fields = text.replace(",", " ").split()
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            fields = [str(getattr(one, "value", "")) for one in elements]
        case _:
            fields = []
    return dict(given_by(call, fields))


def _entries(values: Values, node: ast.expr, module: Module, depth: int = 0) -> list[ast.expr] | None:
    """Return what a loop goes through, each as an expression."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return list(node.elts)
    if isinstance(node, ast.Name) and (found := _entries_of_name(values, node, module, depth)) is not None:
        return found
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args
    if is_method and node.func.attr in ("items", "keys"):  # type: ignore[attr-defined]
        pairs = _pairs(values, node.func.value, module, 0)  # type: ignore[attr-defined]
        if pairs is None:
            return None
        keys_only = node.func.attr == "keys"  # type: ignore[attr-defined]
        return [key if keys_only else ast.Tuple([key, value], ast.Load()) for key, value in pairs]
    pairs = _pairs(values, node, module, 0)
    return None if pairs is None else [key for key, _ in pairs]


def _entries_of_name(values: Values, name: ast.Name, module: Module, depth: int) -> list[ast.expr] | None:
    """Return what a variable holds, or what a parameter holds in all calls of its function together."""
    function = module.function_of(name)
    if function is None or name.id not in parameters(function):
        assigned = values.assigned(name, module)
        return None if assigned is None else _entries(values, assigned, module, depth + 1)
    calls = values.program.calls_to(function, module)
    if values.program.uses[function.name] > len(calls):  # something else may call it
        return None
    given = [(home, given_for(call, function, name.id)) for home, call in calls]
    each = [None if one is None else _entries(values, one, home, depth + 1) for home, one in given]
    return [entry for entries in each for entry in entries or ()] if each and None not in each else None


def _pairs(values: Values, node: ast.expr | None, module: Module, depth: int) -> list[Pair] | None:
    """Return the keys of a mapping with their values, as far as all of it is written down; the last of a key counts."""
    if node is None or depth > _DEEPEST:
        return None
    if isinstance(node, ast.Dict):
        parts = [
            _pairs(values, value, module, depth + 1) if key is None else [(key, value)]
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return _joined(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _joined([_pairs(values, side, module, depth + 1) for side in (node.left, node.right)])
    if isinstance(node, ast.Call):
        return _pairs_of_call(values, node, module, depth)
    if isinstance(node, ast.Name):
        return _pairs_of_name(values, node, module, depth)
    return None


def _pairs_of_call(values: Values, call: ast.Call, module: Module, depth: int) -> list[Pair] | None:
    name = values.program.name_of(call.func, module)
    if name == "dict":
        parts = [_pairs(values, item, module, depth + 1) for item in call.args]
        for keyword in call.keywords:
            is_whole = keyword.arg is None
            own = [(ast.Constant(keyword.arg), keyword.value)]
            parts.append(_pairs(values, keyword.value, module, depth + 1) if is_whole else own)  # type: ignore[arg-type]
        return _joined(parts)
    found = values.program.definition(name)
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    returned = [node.value for node in walk(found[1]) if isinstance(node, ast.Return)]
    return _pairs(values, returned[0], found[0], depth + 1) if len(returned) == 1 else None


def _pairs_of_name(values: Values, name: ast.Name, module: Module, depth: int) -> list[Pair] | None:
    if name.id in values.bound:
        return _pairs(values, values.bound[name.id], module, depth + 1)
    scope = module.function_of(name)
    if scope is not None and name.id in parameters(scope):
        return _pairs_of_parameter(values, name.id, scope, module, depth)
    assigned = values.assigned(name, module)
    parts = [_pairs(values, assigned, module, depth + 1)]
    for node in walk(scope or module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            if isinstance(node.func.value, ast.Name) and node.func.value.id == name.id:
                given = node.args[0] if node.args else ast.Call(ast.Name("dict", ast.Load()), [], node.keywords)
                parts.append(_pairs(values, given, module, depth + 1))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            if isinstance(target.value, ast.Name) and target.value.id == name.id:
                parts.append([(target.slice, node.value)])
    return _joined(parts)


def _pairs_of_parameter(
    values: Values, name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, module: Module, depth: int
) -> list[Pair] | None:
    """Return what a parameter holds in all calls of its function together."""
    calls = values.program.calls_of.get(f"{module.name}.{function.name}", ())
    given = [_pairs(values, given_for(call, function, name), home, depth + 1) for home, call in calls]
    return _joined(given) if calls else None


def _joined(parts: Sequence[list[Pair] | None]) -> list[Pair] | None:
    if any(part is None for part in parts):
        return None
    by_key = {ast.dump(key): (key, value) for part in parts if part is not None for key, value in part}
    return list(by_key.values())
