"""The entries that a program puts into a mapping after it was made: `cfg["train"]["batch_size"] = args.batch_size`."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program.module import FUNCTIONS, Module, class_around
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import is_set_by_name
from jobsubmit.check.program.variables import assigned_to, is_executed, position, variable_of

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values

_MOST_CHANGES = 40
_MOST_PASSES = 200


def with_entries(values: Values, found: Any, name: str, use: ast.AST | None, module: Module) -> Any:
    """Return the value that a variable or a field of a name has, with the entries that are put into it.

    An entry that may be another one where it is used is UNKNOWN, and so is the whole where it is not clear which one
    changes; lists, too.
    """
    if not isinstance(found, (list, dict)):
        return found
    changes = [one for one in values.program.changes.get(name, ()) if not _is_of_other_class(values, one[1])]
    if not changes:
        return found
    changes = [
        (home, node)
        for home, node in changes
        if not (_is_after(node, home, use, module) or _is_of_other_variable(node, name, home, use, module))
    ]
    if not isinstance(found, dict) or len(changes) > _MOST_CHANGES:
        return UNKNOWN
    filled = _copied(found)
    for home, node in changes:
        is_before = _is_before(node, home, use, module)
        for one, runs in _each_pass(values, node, home):
            keys = _keys_of(one, node, home)
            value = _set_to(one, node, home) if is_before and runs else UNKNOWN
            if runs is not False and (keys is None or not _put(filled, keys, value)):
                return UNKNOWN
    return filled


def _is_of_other_class(values: Values, node: ast.AST) -> bool:
    """Return whether a change is a call of a method that classes of the program have, and no mapping or list has."""
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name in values.program.methods and not hasattr(dict, name) and not hasattr(list, name)


def _copied(found: dict[Any, Any]) -> dict[Any, Any]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in found.items()}


def _each_pass(values: Values, node: ast.AST, module: Module) -> Iterator[tuple[Values, bool | None]]:
    """Yield the values in each pass of the loops around a node, where these are known, with whether it is executed."""
    scope = module.scope_of(node)
    around = list(itertools.takewhile(lambda one: one is not scope, module.above(node)))
    loops = [one for one in reversed(around) if isinstance(one, ast.For)]
    passes = _passes(values, loops, module)
    if not loops or passes is None:
        yield values, is_executed(node, scope, module, values.truth)
        return
    for one in passes:
        yield one, is_executed(node, loops[-1], module, one.truth)


def _passes(values: Values, loops: Sequence[ast.For], module: Module) -> list[Values] | None:
    """Return the values in each pass of loops inside each other; None where one goes through what is not known."""
    passes = [values]
    for loop in loops:
        inner: list[Values] = []
        for outer in passes:
            pairs = _pairs(outer, loop, module)
            if pairs is None or len(inner) + len(pairs) > _MOST_PASSES:
                return None
            bound = ({**outer.bound, **{name: ast.Constant(value) for name, value in pair}} for pair in pairs)
            inner += [replace(outer, bound=one) for one in bound]
        passes = inner
    return passes


def _pairs(values: Values, loop: ast.For, module: Module) -> list[list[tuple[str, Any]]] | None:
    """Return the variables of a loop in each pass, where they are known.

    It is one over a mapping or its items, over words such as `sys.argv[1:]`, or over two lists together.
    """
    match loop:
        case ast.For(target=ast.Name(id=name), iter=items):
            words = values.of(items, module)
            return [[(name, word)] for word in words] if isinstance(words, (list, dict)) else None
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=key), ast.Name(id=value)]),
            iter=ast.Call(func=ast.Attribute(attr="items", value=mapping)),
        ):
            entries = values.of(mapping, module)
            return (
                [[(key, one), (value, other)] for one, other in entries.items()] if isinstance(entries, dict) else None
            )
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=key), ast.Name(id=value)]),
            iter=ast.Call(func=ast.Name(id="zip"), args=[left, right]),
        ):
            both = [values.of(one, module) for one in (left, right)]
            if all(isinstance(one, list) for one in both):
                return [[(key, one), (value, other)] for one, other in zip(*both, strict=False)]
    return None


def _keys_of(values: Values, node: ast.AST, module: Module) -> list[Any] | None:
    """Return the keys that lead to the entry which a node changes; None where they are not known."""
    if is_set_by_name(node):
        key = values.of(node.args[1], module)
        return [key] if isinstance(key, str) else None
    if isinstance(node, ast.Call):
        node = node.func.value if isinstance(node.func, ast.Attribute) else node  # a list in it is added to
    elif isinstance(node, ast.AugAssign):
        node = node.target
    keys: list[Any] = []
    while isinstance(node, ast.Subscript):
        keys.insert(0, values.of(node.slice, module))
        node = node.value
    is_known = bool(keys) and all(isinstance(key, (str, int)) for key in keys)
    return keys if is_known else None


def _is_before(node: ast.AST, home: Module, use: ast.AST | None, module: Module) -> bool:
    """Return whether a change surely comes before a use, which is in a module whose name it is (None)."""
    scope = home.scope_of(node)
    if use is None or home is not module:
        return use is None and home is module and isinstance(scope, ast.Module)
    if scope is module.scope_of(use):
        return position(node) < position(use)
    is_made = getattr(scope, "name", "") == "__init__" and class_around(use, module) is class_around(node, home)
    return isinstance(scope, ast.Module) or (isinstance(use, ast.Attribute) and is_made)


def _is_after(node: ast.AST, home: Module, use: ast.AST | None, module: Module) -> bool:
    """Return whether a change surely comes after a use: further below in the same function, and in no loop with it."""
    if use is None or home is not module or home.scope_of(node) is not module.scope_of(use):
        return False
    around = {*module.above(use)}
    is_below = position(node) > position(use) or home.parents.get(node) in around
    return is_below and not any(isinstance(one, (ast.For, ast.While)) for one in around & {*home.above(node)})


def _is_of_other_variable(node: ast.AST, name: str, home: Module, use: ast.AST | None, module: Module) -> bool:
    """Return whether a change is one of a variable that another function, or a module, has made.

    What that returns, or gives for a parameter, has it already.
    """
    scope = home.scope_of(node)
    root: ast.AST = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
    while isinstance(root, ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name) or (scope, name) not in home.own_stores:
        return False
    if isinstance(scope, FUNCTIONS):
        return use is None or scope not in {*home.above(use)}
    return use is not None and not (isinstance(use, ast.Name) and variable_of(use, module) == (scope, name))


def _set_to(values: Values, node: ast.AST, module: Module) -> Any:
    """Return what an entry is set to by an assignment; UNKNOWN for any other change."""
    if is_set_by_name(node):
        return values.of(node.args[2], module)
    is_target = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    value = assigned_to(node, module) if isinstance(node, ast.Subscript) and is_target else None
    return UNKNOWN if value is None else values.of(value, module)


def _put(found: dict[Any, Any], keys: list[Any], value: Any) -> bool:
    """Put an entry into a mapping of mappings; return whether there is a place for it."""
    for key in keys[:-1]:
        inner = found.get(key)
        if not isinstance(inner, dict):
            return False
        found = inner
    found[keys[-1]] = value
    return True
