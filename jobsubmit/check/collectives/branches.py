"""What follows a branch of a condition, and whether the branch leaves the way of the others."""

from __future__ import annotations

import ast

from jobsubmit.check.program.module import EXITS, Module, spelled
from jobsubmit.check.program.tree import children, walk


def after(node: ast.If, module: Module) -> list[ast.stmt]:
    """Return the statements that follow one in its block."""
    parent = module.parents[node]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and node in block:
            return block[block.index(node) + 1 :]
    return []


def leaves_at_last(body: list[ast.stmt]) -> bool:
    """Return whether nothing after a block is executed once the block was."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return spelled(last.value.func) in EXITS
    return isinstance(last, (ast.Return, ast.Continue))


def leaves(body: list[ast.stmt]) -> bool:
    """Return whether rank 0 goes its own way from here."""
    return any(_leaves_by(statement) for statement in body)


def _leaves_by(node: ast.AST) -> bool:
    if isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
        return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return False
    inner = children(node)
    if isinstance(node, (ast.For, ast.While)):
        return any(isinstance(child, ast.stmt) and _returns(child) for child in inner)
    return any(_leaves_by(child) for child in inner)


def _returns(node: ast.AST) -> bool:
    return any(isinstance(inner, (ast.Return, ast.Raise)) for inner in walk(node))
