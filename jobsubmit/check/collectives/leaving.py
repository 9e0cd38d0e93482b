"""Loops that rank 0 leaves before the others, and programs that it ends: they wait for it, and the job hangs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import CollectiveFinder, finder_of
from jobsubmit.check.collectives.loops import loop_and_tests, synchronizes
from jobsubmit.check.collectives.rank_conditions import (
    is_empty_for_others,
    is_in_branch_of_zero,
    zero_side,
)
from jobsubmit.check.program.module import EXITS, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.common.finding import Finding

_DEEPEST = 3


def check_leaving(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loop or a program that rank 0 leaves while the others go on."""
    if code.world_size == 1:
        return
    finder = finder_of(code)
    yield from _left_by_one(finder)
    yield from _exited_by_one(finder)


def _left_by_one(finder: CollectiveFinder) -> Iterator[Finding]:
    code = finder.code
    for module, node in code.program.of(ast.Break, ast.Return):
        if not code.reached.of(node, module):
            continue
        loop, tests = loop_and_tests(node, module)
        if loop is None:
            continue
        is_of_zero = any(_is_for_zero(code, one, node, loop, module) for one in tests)
        figure = next((name for one in tests for name in _figures_of_zero(code, one.test, loop, module)), "")
        if (is_of_zero or figure) and synchronizes(finder, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                "only rank 0 leaves this loop: the others wait for it in the next step, and the job would hang"
                if is_of_zero
                else f"only rank 0 sets {figure}: it leaves this loop in another step than the others, and the job "
                "would hang",
                "let rank 0 decide for all: broadcast the decision, and leave the loop on every rank",
            )
            return


def _exited_by_one(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where rank 0 alone ends its program, as if nothing had failed, in a loop of all ranks."""
    code = finder.code
    for module, call in code.calls(*EXITS):
        is_success = not call.args or code.values.of(call.args[0], module) in (0, None)
        if is_success and is_in_branch_of_zero(code, call, module) and is_in_common_loop(finder, call, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(call),
                "only rank 0 ends its program here: the others wait for it in the next step, and the job would hang",
                "let rank 0 decide for all: broadcast the decision, and end the program on every rank",
            )
            return


def is_in_common_loop(finder: CollectiveFinder, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether a loop around a node, or around a call of the function that it is in, waits for all ranks."""
    loops = [above for above in module.above(node) if isinstance(above, (ast.For, ast.While))]
    if any(synchronizes(finder, loop, module) for loop in loops):
        return True
    function = module.function_of(node)
    if function is None or depth >= _DEEPEST:
        return False
    calls = [(home, call) for home, call, _ in finder.code.reached.calls if _last_name(call.func) == function.name]
    return any(is_in_common_loop(finder, call, home, depth + 1) for home, call in calls)


def _last_name(node: ast.expr) -> str:
    return unparsed(node).rpartition(".")[2]


def _is_for_zero(code: Code, one: ast.If, node: ast.AST, loop: ast.AST, module: Module) -> bool:
    """Return whether rank 0 alone comes to a node in a condition: by its rank, or by what only rank 0 decides."""
    if node in _inside(one.orelse):
        return False
    return zero_side(one.test, code, module) is True or _is_decided_by_zero(code, one.test, loop, module)


def _figures_of_zero(code: Code, test: ast.expr, loop: ast.AST, module: Module) -> Iterator[str]:
    """Yield the variables in a comparison that only rank 0 sets: `if epoch - best_epoch > patience`."""
    if isinstance(test, (ast.Compare, ast.BoolOp)):
        given = {one for call in walk(test) if isinstance(call, ast.Call) for one in walk(call)}  # it may be combined
        names = (node for node in walk(test) if isinstance(node, ast.Name) and node not in given)
        yield from (name.id for name in names if _is_decided_by_zero(code, name, loop, module))


def _is_decided_by_zero(code: Code, test: ast.expr, loop: ast.AST, module: Module) -> bool:
    """Return whether a condition is a variable that only rank 0 sets, and that nothing hands on to the others."""
    if isinstance(test, ast.Attribute) and _is_set_by_zero(code, test.attr):
        return True
    root = test.value if isinstance(test, ast.Attribute) else test
    if not isinstance(root, ast.Name):
        return False
    nodes = list(walk(loop))
    changes: list[ast.AST] = []
    if isinstance(test, ast.Name):
        if any(isinstance(node, ast.Name) and node.id == root.id and _is_handed_on(node, module) for node in nodes):
            return False
        stores = module.stores.get((module.function_of(loop) or module.tree, root.id), ())
        changes = [store for store in stores if store in nodes and not _is_reset(store, module)]
    else:
        calls = (node for node in nodes if isinstance(node, ast.Call))
        changes = [call for call in calls if spelled(call.func).partition(".")[0] == root.id]
    return bool(changes) and all(is_in_branch_of_zero(code, change, module) for change in changes)


def _is_set_by_zero(code: Code, attribute: str) -> bool:
    """Return whether only rank 0 comes to what sets an attribute to more than False."""
    stores = code.program.attribute_stores.get(attribute, ())
    values = [(home, store, assigned_to(store, home)) for home, store in stores]
    others = [(home, node) for home, node in code.program.of(ast.Attribute) if node.attr == attribute]
    is_given = any(isinstance(home.parents.get(node), ast.Call) for home, node in others)  # to be broadcast, perhaps
    changes = [
        (home, store) for home, store, value in values if not (isinstance(value, ast.Constant) and not value.value)
    ]
    return bool(changes) and not is_given and all(_is_of_zero(code, store, home) for home, store in changes)


def _is_of_zero(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether only rank 0 executes a node: by a condition, a loop over what others lack, or all its callers."""
    if depth > _DEEPEST:
        return False
    if is_in_branch_of_zero(code, node, module):
        return True
    loops = [one for one in module.above(node) if isinstance(one, ast.For)]
    if any(is_empty_for_others(code, loop.iter, module) for loop in loops):
        return True
    function = module.function_of(node)
    calls = [
        (home, call)
        for home, call, _ in code.reached.calls
        if function is not None and _last_name(call.func) == function.name
    ]
    return bool(calls) and all(_is_of_zero(code, call, home, depth + 1) for home, call in calls)


def _is_handed_on(name: ast.Name, module: Module) -> bool:
    """Return whether a use of a variable is none in a condition: then others may get its value."""
    parents = (above for above in module.above(name) if isinstance(above, ast.stmt))
    statement = next(parents, None)
    return isinstance(name.ctx, ast.Load) and not isinstance(statement, (ast.If, ast.While))


def _is_reset(store: ast.Name, module: Module) -> bool:
    value = assigned_to(store, module)
    return isinstance(value, ast.Constant) and not value.value


def _inside(body: Iterable[ast.AST]) -> set[ast.AST]:
    return {inner for statement in body for inner in walk(statement)}
