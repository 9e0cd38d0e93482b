"""Collective calls that some ranks reach and others do not, or in another order: these wait, and the job hangs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.branches import after, leaves, leaves_at_last
from jobsubmit.check.collectives.calls import Collective, CollectiveFinder, finder_of, has_counterpart
from jobsubmit.check.collectives.rank_conditions import (
    mentions_rank,
    zero_side,
)
from jobsubmit.check.origins import last_value, words_of
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.operations import Several
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding


def check_some_ranks(code: Code) -> Iterator[Finding]:
    """Yield a warning for a collective that only some ranks reach, or that each reaches in an order of its own."""
    if code.world_size == 1:
        return
    finder = finder_of(code)
    yield from _reached_by_some(finder)
    yield from _in_order_of_a_set(finder)


def _reached_by_some(finder: CollectiveFinder) -> Iterator[Finding]:
    for module, node in finder.code.program.of(ast.If, ast.IfExp):
        if not finder.code.reached.of(node, module) or zero_side(node.test, finder.code, module) is not None:
            continue
        for body, others, found in _one_sided(finder, node, module):
            scope = module.scope_of(node)
            if has_counterpart(finder, scope, module, body, found) or finder.may_meet(others, module):
                continue
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


def _one_sided(
    finder: CollectiveFinder, node: ast.If | ast.IfExp, module: Module
) -> Iterator[tuple[Sequence[ast.AST], Sequence[ast.AST], Collective]]:
    """Yield what some ranks execute by a condition, what the others do instead, and a collective of the former."""
    differs = _differs(finder.code, node, module)
    may_make_groups = isinstance(node.test, ast.Compare) and "new_group" in finder.code.names
    body: Sequence[ast.AST] = [node.body] if isinstance(node, ast.IfExp) else node.body
    rest: Sequence[ast.AST] = [node.orelse] if isinstance(node, ast.IfExp) else node.orelse
    if isinstance(node, ast.If) and leaves(node.body):
        rest = [*rest, *after(node, module)]
    found = next(finder.collectives(body, module), None) if differs or may_make_groups else None
    if found is not None and (differs or (_is_of_all(found) and _compares_rank(finder.code, node, module))):
        yield body, rest, found
    if not (may_make_groups and isinstance(node, ast.If) and leaves_at_last(node.body)):
        return
    if _compares_rank(finder.code, node, module):
        yield from ((rest, node.body, one) for one in _new_groups(finder, rest, module) if _is_of_all(one))


def _is_of_all(found: Collective) -> bool:
    """Return whether a call makes a group that all ranks must make, whoever is in it."""
    return found.name == "new_group" and argument(found.call, "use_local_synchronization") is None


def _new_groups(finder: CollectiveFinder, body: Iterable[ast.AST], module: Module) -> Iterator[Collective]:
    """Yield the calls in some statements that make a group, itself or by a function of the same name."""
    for call in (node for statement in body for node in walk(statement) if isinstance(node, ast.Call)):
        if finder.code.program.name_of(call.func, module).endswith(".new_group") and finder.code.reached.of(
            call, module
        ):
            yield Collective(call, module, "new_group")


def _differs(code: Code, node: ast.If | ast.IfExp, module: Module) -> bool:
    """Return whether a condition surely holds on some ranks and not on others."""
    value = code.values.of(node.test, module)
    return isinstance(value, Several) and len(set(map(bool, value.values))) > 1


def _compares_rank(code: Code, node: ast.If | ast.IfExp, module: Module) -> bool:
    """Return whether a condition compares the rank or what is computed from it: `rank in members`, `i == rank // 2`."""
    if not isinstance(node.test, ast.Compare):
        return False
    sides = (node.test.left, *node.test.comparators)
    if isinstance(node.test.ops[0], (ast.Is, ast.IsNot)):
        return mentions_rank(node.test)
    return mentions_rank(node.test) or any("get_rank()" in words_of(code, one, module) for one in sides)


def _in_order_of_a_set(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning for collectives in a loop over a set of texts, whose order differs between processes."""
    code = finder.code
    for module, loop in code.program.of(ast.For):
        made = last_value(loop.iter, module) if isinstance(loop.iter, ast.Name) else loop.iter
        if not code.reached.of(loop, module) or made is None or not _is_set(made):
            continue
        if next(finder.collectives(loop.body, module), None) is not None:
            yield Finding(
                "warning",
                "set-order",
                module.where(loop),
                f"{unparsed(loop.iter)} is a set, and each process goes through a set of texts in an order of its "
                "own: the ranks would reduce different things",
                f"sort it: for … in sorted({unparsed(loop.iter)})",
            )
            return


def _is_set(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_set(node.left) or _is_set(node.right)
    return isinstance(node, (ast.Set, ast.SetComp)) or (isinstance(node, ast.Call) and spelled(node.func) == "set")
