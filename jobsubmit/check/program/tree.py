"""The nodes of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache, lru_cache

_OF_NO_NODES = frozenset(
    ["arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "level", "module", "type_comment"]
)
_WITH_BLOCKS = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With)


@cache
def fields_with_nodes(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the `_fields` of a node that may hold nodes, other than those that say only load or store."""
    is_constant = "kind" in fields
    return () if is_constant else tuple(one for one in fields if one not in _OF_NO_NODES)


@lru_cache(maxsize=1 << 19)
def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes directly inside a node, in their order in the source; none that say only load or store."""
    found: list[ast.AST] = []
    for name in fields_with_nodes(node._fields):
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


def factors_of(node: ast.expr) -> list[ast.expr]:
    """Return what a product is made of; any other expression is itself."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return [*factors_of(left), *factors_of(right)]
    return [node]
