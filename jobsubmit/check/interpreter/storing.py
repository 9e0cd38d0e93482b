"""Which attributes a function of the program may set, by its text and that of the functions it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import walk

_MOST_FUNCTIONS = 80
_CHANGES = frozenset(
    [
        *("append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault", "add", "discard"),
        *("sort", "reverse", "appendleft", "popleft"),
    ]
)
_ANY = frozenset(["setattr", "__setattr__", "__dict__", "vars", "exec", "eval"])


def names_stored(program: Program, function: ast.AST) -> frozenset[str] | None:
    """Return the names of the attributes that a function sets, or whose entries it changes; None if it may be any."""
    names: set[str] = set()
    seen: set[ast.AST] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if len(seen) > _MOST_FUNCTIONS:
            return None
        called: set[str] = set()
        for node in walk(one):
            if {getattr(node, "id", ""), getattr(node, "attr", "")} & _ANY:
                return None
            names |= _stored(node)
            if isinstance(node, ast.Call):
                called.add(getattr(node.func, "attr", getattr(node.func, "id", "")))
        waiting += _functions(program, called)
    return frozenset(names)


def _functions(program: Program, names: Iterable[str]) -> list[ast.AST]:
    return [one for name in names for one in program.functions.get(name, ())]


def _stored(node: ast.AST) -> set[str]:
    """Return the attribute that a node sets, or whose entries it changes."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
            return {name}
        case ast.Subscript(value=ast.Attribute(attr=name), ctx=ast.Store() | ast.Del()):
            return {name}
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name), attr=change)) if change in _CHANGES:
            return {name}
    return set()
