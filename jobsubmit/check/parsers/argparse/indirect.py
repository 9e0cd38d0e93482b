"""Parsed arguments that a program changes by computed names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.parsers.argparse.loops import passes
from jobsubmit.check.parsers.argparse.search import Search
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.variables import parameters


def fields_set_by_name(search: Search, kept: Namespaces) -> frozenset[str]:
    """Return the fields of parsed arguments that `setattr` sets, where their names are known."""
    return frozenset(
        name
        for module, call in _set_by_name(search)
        if may_hold(call.args[0], kept, search, module)
        for name in _names_set(call, search, module) or ()
    )


def fills_those_not_given(search: Search) -> bool:
    """Return whether the program sets fields of the arguments that are None, by computed names."""
    return any(name == "setattr" and _only_fills(call, module) for module, call, name in search.calls)


def changed(search: Search) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the objects whose attributes are set by computed names that are not known."""
    for module, node in search.program.of(ast.Attribute):
        is_set = node.attr == "__dict__" and (_is_written(node, search, module) or not isinstance(node.ctx, ast.Load))
        if is_set and search.reached.of(node, module):
            yield module, node.value
    for module, call, name in search.calls:
        if call.args and name == "vars" and _is_written(call, search, module):
            yield module, call.args[0]
    for module, call in _set_by_name(search):
        if _names_set(call, search, module) is None:
            yield module, call.args[0]


def _set_by_name(search: Search) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls of `setattr` that may change a field: not those that only add one that is missing."""
    for module, call, name in search.calls:
        if name == "setattr" and len(call.args) > 1 and not (_only_adds(call, module) or _only_fills(call, module)):
            yield module, call


def _only_adds(call: ast.Call, module: Module) -> bool:
    """Return whether a field is set only where there is none: `if not hasattr(args, key): setattr(args, key, x)`."""
    field = list(map(unparsed, call.args[:2]))
    for above in module.above(call):
        match above:
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id="hasattr"), args=asked))):
                return list(map(unparsed, asked)) == field
    return False


def _only_fills(call: ast.Call, module: Module) -> bool:
    """Return whether a field is set only where it is None: `if getattr(args, key) is None: setattr(args, key, x)`."""
    field = list(map(unparsed, call.args[:2]))
    for above in module.above(call):
        match above:
            case ast.If(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id="getattr"), args=asked),
                    ops=[ast.Is()],
                    comparators=[ast.Constant(value=None)],
                )
            ):
                return list(map(unparsed, asked[:2])) == field
    return False


def _names_set(call: ast.Call, search: Search, module: Module) -> set[str] | None:
    """Return the names of the fields that a call of `setattr` sets, in each pass of a loop; None if not known."""
    each = passes(search.values, call, module)
    values = [search.values] if each is None else [one.values for one in each]
    names = [one.of(call.args[1], module) for one in values]
    return set(names) if all(isinstance(name, str) for name in names) else None


def _is_written(node: ast.AST, search: Search, module: Module) -> bool:
    """Return whether something may be put into the dictionary that an expression is: it is not only read."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.Assign):  # another name for it
        return any(spelled(target).rpartition(".")[2] in search.program.changes for target in parent.targets)
    return isinstance(parent, ast.Attribute) and parent.attr in ("update", "setdefault", "pop", "clear")


def may_hold(node: ast.expr, kept: Namespaces, search: Search, module: Module) -> bool:
    """Return whether an object may be the parsed arguments: by its variable, or by what calls give for a parameter."""
    if not isinstance(node, ast.Name):
        return isinstance(node, ast.Attribute) and any(name in unparsed(node) for name in kept.names)
    if kept.hold(node, module):
        return True
    function = module.function_of(node)
    if function is None or node.id not in parameters(function):
        return False
    calls = search.program.calls_to(function, module)
    given = [(home, given_for(call, function, node.id)) for home, call in calls]
    return any(isinstance(one, ast.Name) and kept.hold(one, home) for home, one in given)
