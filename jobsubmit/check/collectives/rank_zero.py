"""Collective calls that only rank 0 reaches: it waits for the other ranks, and the job hangs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code, trains
from jobsubmit.check.collectives.branches import after, leaves, leaves_at_last
from jobsubmit.check.collectives.calls import finder_of, has_counterpart
from jobsubmit.check.collectives.loops import exchanges_gradients
from jobsubmit.check.collectives.rank_conditions import (
    is_for_main_process_only,
    zero_side,
)
from jobsubmit.check.program.module import Module
from jobsubmit.common.finding import Finding


def check_rank_zero(code: Code) -> Iterator[Finding]:
    """Yield a warning for each collective that only rank 0 reaches."""
    if code.world_size == 1:
        return
    finder = finder_of(code)
    seen: set[ast.AST] = set()
    for module, body, others, scope in branches_of_zero(code):
        found = next(finder.collectives(body, module), None)
        if found is None or found.call in seen or finder.may_meet(others, module) or _handles_signals(code, scope):
            continue
        if has_counterpart(finder, scope, module, body, found) or (leaves(body) and not leaves(others)):
            continue
        seen.add(found.call)
        yield Finding(
            "warning",
            "rank-0-collective",
            found.module.where(found.call),
            f"only rank 0 reaches this {found.name}(), which waits for all ranks: the job would hang",
            "move it out of the branch"
            if found.module is module
            else f"move the call that leads to it out of the branch: {module.where(body[0])}",
        )
    yield from _trained_by_zero(code) if exchanges_gradients(code) else ()


def _trained_by_zero(code: Code) -> Iterator[Finding]:
    """Yield a warning for a backward() of rank 0 alone, in which the processes exchange gradients."""
    for module, body, others, _ in branches_of_zero(code):
        call = next((one.value for one in body if isinstance(one, ast.Expr) and _goes_backward(one.value)), None)
        if call is not None and not any(map(trains, others)) and code.reached.of(call, module):
            yield Finding(
                "warning",
                "rank-0-collective",
                module.where(call),
                "only rank 0 reaches this backward(), which waits for all ranks: the job would hang",
                "move it out of the branch",
            )
            return


def _goes_backward(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"


def _handles_signals(code: Code, scope: ast.AST) -> bool:
    """Return whether only a signal has a function called, which a job of this kind may never get."""
    name = getattr(scope, "name", "")
    handlers = (call.args[1] for _, call in code.calls("signal.signal") if call.args[1:])
    return any(isinstance(one, ast.Name) and one.id == name for one in handlers)


def zero_branches(code: Code) -> Iterator[tuple[Module, list[ast.stmt]]]:
    """Yield what only rank 0 executes, where that is anything."""
    for module, body, _, _ in branches_of_zero(code):
        if body:
            yield module, body


def branches_of_zero(code: Code) -> Iterator[tuple[Module, list[ast.stmt], list[ast.stmt], ast.AST]]:
    """Yield what only rank 0 executes, what the others do instead, and the function around both."""
    for module, node in code.program.of(ast.FunctionDef, ast.AsyncFunctionDef, ast.If):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if is_for_main_process_only(code, node, module):
                yield module, node.body, [], node
        if not isinstance(node, ast.If) or not _is_executed(node, code, module):
            continue
        side = zero_side(node.test, code, module)
        scope = module.scope_of(node)
        if side is True:
            yield module, node.body, node.orelse, scope
        elif side is False and leaves_at_last(node.body):
            yield module, [*node.orelse, *after(node, module)], node.body, scope
        elif side is False and node.orelse:
            yield module, node.orelse, node.body, scope


def _is_executed(node: ast.AST, code: Code, module: Module) -> bool:
    """Return whether a node may be executed; what a library calls by itself, no look at the program shows."""
    if code.reached.of(node, module):
        return True
    return code.has_framework and any(isinstance(above, ast.ClassDef) for above in module.above(node))
