"""The nodes of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache, lru_cache

_OF_NO_NODES = frozenset(["arg", "asname", "attr", "conversion", "id", "is_async", "level", "module", "type_comment"])
_WITH_BLOCKS = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With)


@cache
def fields_with_nodes(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that may hold nodes, other than those that say only load or store."""
    return () if kind is ast.Constant else tuple(one for one in kind._fields if one not in _OF_NO_NODES | {"ctx"})


@lru_cache(maxsize=1 << 19)
def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes directly inside a node, in their order in the source; none that say only load or store."""
    found: list[ast.AST] = []
    for name in fields_with_nodes(type(node)):
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
    return tuple(found)


def walk(node: ast.AST) -> Iterable[ast.AST]:
    """Return a node and all inside it, the outer ones first, as ast.walk() does; those of blocks are found once."""
    return _inside(node) if isinstance(node, _WITH_BLOCKS) else _found_inside(node)


@lru_cache(maxsize=1 << 14)
def _inside(node: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(_found_inside(node))


def _found_inside(node: ast.AST) -> list[ast.AST]:
    found = [node]
    for one in found:
        found += children(one)
    return found
