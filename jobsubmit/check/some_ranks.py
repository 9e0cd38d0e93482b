"""Collective calls and steps that some ranks reach and others do not: these wait, and the job hangs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from jobsubmit.check.code import Code, trains
from jobsubmit.check.collective_calls import CollectiveFinder, has_counterpart
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.modules import Module
from jobsubmit.check.program.values import Several
from jobsubmit.check.rank_conditions import after, is_rank, leaves, zero_side
from jobsubmit.common.finding import Finding

_NO_NUMBER = re.compile(r"isnan|isfinite|isinf|is_nan|is_finite")


def check_some_ranks(code: Code) -> Iterator[Finding]:
    """Yield a warning for a collective that only some ranks reach, and a loop or a step that one of them leaves."""
    finder = CollectiveFinder(code)
    yield from _reached_by_some(finder)
    yield from _left_by_one(finder)
    yield from _skipped_by_some(finder)


def _reached_by_some(finder: CollectiveFinder) -> Iterator[Finding]:
    code = finder.code
    for module, node in code.program.of(ast.If):
        differs, compares = _differs(code, node, module), _compares_rank(code, node, module)
        found = next(finder.collectives(node.body, module), None) if differs or compares else None
        if found is None or zero_side(node.test, code, module) is not None:
            continue
        if not differs and (found.name != "new_group" or argument(found.call, "use_local_synchronization")):
            continue
        scope = module.scope_of(node)
        others = [*node.orelse, *(after(node, module) if leaves(node.body) else [])]
        if not has_counterpart(finder, scope, module, node.body, found) and not finder.may_meet(others, module):
            yield Finding(
                "warning",
                "rank-0-collective",
                found.module.where(found.call),
                f"only some ranks reach this {found.name}(), which waits for all ranks: the job would hang",
                "let all ranks call it; new_group, too, must be called by all of them"
                if found.name == "new_group"
                else "move it out of the branch, or give it the group of these ranks",
            )
            return


def _differs(code: Code, node: ast.If, module: Module) -> bool:
    """Return whether a condition surely holds on some ranks and not on others."""
    value = code.values.of(node.test, module)
    return isinstance(value, Several) and len(set(map(bool, value.values))) > 1 and bool(code.reached.of(node, module))


def _compares_rank(code: Code, node: ast.If, module: Module) -> bool:
    """Return whether a condition compares the rank, with numbers that may not be known: `rank in members`."""
    is_comparison = isinstance(node.test, ast.Compare) and is_rank(node.test.left, code, module)
    return is_comparison and bool(code.reached.of(node, module))


def _left_by_one(finder: CollectiveFinder) -> Iterator[Finding]:
    code = finder.code
    for module, node in code.program.of(ast.Break):
        if not code.reached.of(node, module):
            continue
        above = list(module.above(node))
        loop = next((one for one in above if isinstance(one, (ast.For, ast.While))), None)
        tests = [one for one in above[: above.index(loop)] if isinstance(one, ast.If)] if loop else []
        is_of_zero = any(zero_side(one.test, code, module) is True and node not in _inside(one.orelse) for one in tests)
        if loop is not None and is_of_zero and _synchronizes(finder, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                "only rank 0 leaves this loop: the others wait for it in the next step, and the job would hang",
                "let rank 0 decide for all: broadcast the decision, and leave the loop on every rank",
            )
            return


def _skipped_by_some(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where a rank whose own loss is no number skips the step that the others synchronize in."""
    code = finder.code
    for module, node in code.program.of(ast.If):
        is_left = node.body and isinstance(node.body[-1], (ast.Continue, ast.Break))
        if not is_left or not _NO_NUMBER.search(ast.unparse(node.test)) or not code.reached.of(node, module):
            continue
        loop = next((one for one in module.above(node) if isinstance(one, (ast.For, ast.While))), None)
        decides = [call for call in ast.walk(loop) if _is_before(call, node)] if loop else []
        if loop is None or any(finder.name_of(call, module) for call in decides):
            continue
        if _synchronizes(finder, ast.Module(body=after(node, module), type_ignores=[]), module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                "a rank whose own loss is not finite skips this step, and the others wait for its gradients: the job "
                "would hang",
                "decide for all ranks: all_reduce whether any loss is not finite, then skip the step everywhere",
            )
            return


def _is_before(call: ast.AST, node: ast.If) -> TypeGuard[ast.Call]:
    return isinstance(call, ast.Call) and call.lineno < node.lineno


def _inside(body: Iterable[ast.AST]) -> set[ast.AST]:
    return {inner for statement in body for inner in ast.walk(statement)}


def _synchronizes(finder: CollectiveFinder, loop: ast.AST, module: Module) -> bool:
    """Return whether each pass of a loop waits for all ranks: it trains, or calls a collective."""
    code = finder.code
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    found = [code.program.definition(code.program.name_of(call.func, module)) for call in calls]
    is_trained = code.wraps_models and any(map(trains, (loop, *(one[1] for one in found if one))))
    return is_trained or any(finder.name_of(call, module) for call in calls)
