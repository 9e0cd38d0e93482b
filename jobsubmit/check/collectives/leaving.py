"""Loops and steps that one rank leaves before the others, and programs that it ends: these wait, and the job hangs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from jobsubmit.check.code import ACCELERATOR, Code, trains
from jobsubmit.check.collectives.branches import after
from jobsubmit.check.collectives.calls import CollectiveFinder
from jobsubmit.check.collectives.own_figures import is_own_figure
from jobsubmit.check.collectives.rank_conditions import (
    is_empty_for_others,
    is_in_branch_of_zero,
    zero_side,
)
from jobsubmit.check.origins import last_value
from jobsubmit.check.program import objects
from jobsubmit.check.program.module import EXITS, FUNCTIONS, Function, Module, own_method, returned_values, spelled
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.common.finding import Finding

_OWN_LOSS = re.compile(
    r"isnan|isfinite|isinf|is_nan|is_finite|inf_or_nan|nan_or_inf"
    r"|\b(?:loss|approx_kl|kl)(?:_value)?(?:\.item\(\))? [<>]"
)
_LOSS_OF_STEP = re.compile(r"(?:self\.)?(?:(?:train|step|batch|approx)_)?(?:loss|kl)(?:\.\w+\(\))*")
_CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "datetime.datetime.now", "datetime.datetime.utcnow")
_STOPS_EARLY = re.compile(r"early_?stop|(?:^|\.)stopper$", re.IGNORECASE)
_DEEPEST = 3


def check_leaving(code: Code) -> Iterator[Finding]:
    """Yield a warning for a loop, a step or a program that one rank leaves while the others go on."""
    if code.world_size == 1:
        return
    finder = CollectiveFinder(code)
    yield from _left_by_one(finder)
    yield from _exited_by_one(finder)
    yield from _skipped_by_some(finder)
    yield from _left_by_clock(finder)
    yield from _stopped_by_own_figure(finder)


def _left_by_one(finder: CollectiveFinder) -> Iterator[Finding]:
    code = finder.code
    for module, node in code.program.of(ast.Break, ast.Return):
        if not code.reached.of(node, module):
            continue
        loop, tests = _loop_and_tests(node, module)
        if loop is None or not any(_is_for_zero(code, one, node, loop, module) for one in tests):
            continue
        if _synchronizes(finder, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                "only rank 0 leaves this loop: the others wait for it in the next step, and the job would hang",
                "let rank 0 decide for all: broadcast the decision, and leave the loop on every rank",
            )
            return


def _exited_by_one(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where rank 0 alone ends its program, as if nothing had failed, in a loop of all ranks."""
    code = finder.code
    for module, call in code.calls(*EXITS):
        is_success = not call.args or code.values.of(call.args[0], module) in (0, None)
        if is_success and is_in_branch_of_zero(code, call, module) and _is_in_common_loop(finder, call, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(call),
                "only rank 0 ends its program here: the others wait for it in the next step, and the job would hang",
                "let rank 0 decide for all: broadcast the decision, and end the program on every rank",
            )
            return


def _is_in_common_loop(finder: CollectiveFinder, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether a loop around a node, or around a call of the function that it is in, waits for all ranks."""
    loops = [above for above in module.above(node) if isinstance(above, (ast.For, ast.While))]
    if any(_synchronizes(finder, loop, module) for loop in loops):
        return True
    function = module.function_of(node)
    if function is None or depth >= _DEEPEST:
        return False
    calls = [(home, call) for home, call, _ in finder.code.reached.calls if _last_name(call.func) == function.name]
    return any(_is_in_common_loop(finder, call, home, depth + 1) for home, call in calls)


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _loop_and_tests(node: ast.AST, module: Module) -> tuple[ast.For | ast.While | None, list[ast.If]]:
    """Return the loop of this function that a node leaves, and the conditions inside it."""
    tests: list[ast.If] = []
    for above in module.above(node):
        if isinstance(above, (ast.For, ast.While)):
            return above, tests
        if isinstance(above, FUNCTIONS):
            break
        if isinstance(above, ast.If):
            tests.append(above)
    return None, []


def _is_for_zero(code: Code, one: ast.If, node: ast.AST, loop: ast.AST, module: Module) -> bool:
    """Return whether rank 0 alone comes to a node in a condition: by its rank, or by what only rank 0 decides."""
    if node in _inside(one.orelse):
        return False
    return zero_side(one.test, code, module) is True or _is_decided_by_zero(code, one.test, loop, module)


def _is_decided_by_zero(code: Code, test: ast.expr, loop: ast.AST, module: Module) -> bool:
    """Return whether a condition is a variable that only rank 0 sets, and that nothing hands on to the others."""
    if isinstance(test, ast.Attribute) and _is_set_by_zero(code, test.attr):
        return True
    root = test.value if isinstance(test, ast.Attribute) else test
    if not isinstance(root, ast.Name):
        return False
    nodes = list(ast.walk(loop))
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


def _skipped_by_some(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where a rank skips the step that the others synchronize in, because of its own loss."""
    code = finder.code
    for module, node in code.program.of(ast.If):
        is_decided = code.values.truth(node.test, module) is not None
        if is_decided or not code.reached.of(node, module) or zero_side(node.test, code, module) is not None:
            continue
        test = ast.unparse(node.test)
        if "norm" in test or not (_OWN_LOSS.search(test) or _judges_loss(finder, node.test, module)):
            continue  # the norm of averaged gradients is the same on all ranks
        loop = next((one for one in module.above(node) if isinstance(one, (ast.For, ast.While, *FUNCTIONS))), None)
        if loop is None or _is_of_all_ranks(finder, node, loop, module) or _is_agreed(finder, node, module):
            continue
        last = node.body[-1]
        is_left_for_good = isinstance(last, ast.Break) and isinstance(loop, (ast.For, ast.While))
        is_left = is_left_for_good or isinstance(last, (ast.Continue, ast.Break, ast.Return))
        rest = after(node, module) if is_left else node.body
        if _synchronizes(finder, loop if is_left_for_good else ast.Module(body=rest, type_ignores=[]), module):
            test = ast.unparse(node.test)
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                f"a rank whose own loss fulfils `{test}` leaves this loop, and the others wait for its gradients: the "
                "job would hang"
                if is_left_for_good
                else f"a rank whose own loss fulfils `{test}` skips this step, and the others wait for its gradients: "
                "the job would hang"
                if is_left
                else f"a rank whose own loss does not fulfil `{test}` skips this step, and the others wait for its "
                "gradients: the job would hang",
                "decide for all ranks: all_reduce the condition, then do the same everywhere",
            )
            return


def _is_of_all_ranks(finder: CollectiveFinder, node: ast.If, loop: ast.AST, module: Module) -> bool:
    """Return whether what a condition is made of went through a collective before."""
    names = _variables_behind(node.test, module)
    for call in (one for one in ast.walk(loop) if _is_before(one, node) and finder.may_combine(one, module)):
        statement = next((above for above in module.above(call) if isinstance(above, ast.stmt)), call)
        changed = [*call.args[:1], *getattr(statement, "targets", ())]
        if names & {one.id for given in changed for one in ast.walk(given) if isinstance(one, ast.Name)}:
            return True
    return False


def _variables_behind(node: ast.expr, module: Module) -> set[str]:
    """Return the variables in an expression, and those of this function that they are computed from."""
    scope, found = module.scope_of(node), set[str]()
    waiting: list[ast.AST] = [node]
    while waiting:
        names = {one.id for one in ast.walk(waiting.pop()) if isinstance(one, ast.Name)} - {*module.aliases} - found
        found |= names
        stores = (store for name in names for store in module.stores.get((scope, name), ()))
        statements = (next(above for above in module.above(store) if isinstance(above, ast.stmt)) for store in stores)
        waiting += [value for one in statements if (value := getattr(one, "value", None)) is not None]
    return found


def _judges_loss(finder: CollectiveFinder, test: ast.expr, module: Module) -> bool:
    """Return whether a condition is what a function or an object makes of a rank's own loss: `accept(loss)`."""
    call = test.operand if isinstance(test, ast.UnaryOp) else test
    if not isinstance(call, ast.Call) or not any(_LOSS_OF_STEP.fullmatch(ast.unparse(given)) for given in call.args):
        return False
    found = finder.code.program.called(call, module) or _method_of(finder.code, call.func, "__call__", module)
    if found is None and isinstance(call.func, ast.Attribute):
        found = _method_of(finder.code, call.func.value, call.func.attr, module)
    if found is None or not isinstance(found[1], FUNCTIONS):
        return False
    compares = any(isinstance(node, ast.Compare) for node in ast.walk(found[1]))
    return compares and next(finder.collectives(found[1].body, found[0]), None) is None


def _method_of(code: Code, node: ast.expr, name: str, module: Module) -> tuple[Module, Function] | None:
    """Return a method of the object that an expression is, if its class is known."""
    found = objects.made(code.program, node, module) if isinstance(node, (ast.Name, ast.Attribute)) else None
    method = own_method(found.owner, name) if found is not None else None
    return (found.home, method) if found is not None and method is not None else None


def _left_by_clock(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where each rank leaves a training loop by its own clock."""
    code = finder.code
    for module, node in code.program.of(ast.If, ast.While):
        loop = node if isinstance(node, ast.While) else _loop_left_by(node, module)
        if loop is None or not code.reached.of(node, module) or zero_side(node.test, code, module) is not None:
            continue
        if not _reads_clock(code, node.test, module):
            continue
        if not _is_agreed(finder, node, module) and _synchronizes(finder, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                f"each rank leaves this loop by its own clock (`{ast.unparse(node.test)}`): a rank that does one step "
                "more waits for the others, and the job would hang",
                "let rank 0 decide for all: broadcast the decision, and leave the loop on every rank",
            )
            return


def _stopped_by_own_figure(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where early stopping decides by what one rank has seen: the ranks leave in different epochs."""
    for module, call, _ in finder.code.reached.calls:
        loop, _ = _loop_and_tests(call, module)
        name = spelled(call.func).removesuffix(".step")
        if not call.args or loop is None or not _STOPS_EARLY.search(name):
            continue
        leaves_loop = any(
            isinstance(inner, (ast.Break, ast.Return))
            and any(isinstance(above, ast.If) and name in ast.unparse(above.test) for above in module.above(inner))
            for inner in ast.walk(loop)
        )
        if leaves_loop and is_own_figure(finder, call.args[0], module) and _synchronizes(finder, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(call),
                f"each rank gives {name}() a figure of its own data: one rank would leave this loop before the others, "
                "and the job would hang",
                "average the figure over all ranks first: all_reduce()",
            )
            return


def _loop_left_by(node: ast.If, module: Module) -> ast.For | ast.While | None:
    """Return the loop that a condition surely leaves."""
    if not isinstance(node.body[-1], (ast.Break, ast.Return)):
        return None
    loop, tests = _loop_and_tests(node.body[-1], module)
    return loop if tests == [node] else None


def _reads_clock(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition surely compares a time with a limit, itself or in the method that it calls."""
    nodes = [(module, test)]
    if (function := _asked(code, test, module)) is not None:
        nodes = [(function[0], value) for value in returned_values(function[1])]
    compared = [(home, node) for home, node in nodes if isinstance(node, ast.Compare)]
    return bool(compared) and all(_has_clock(code, node, home) for home, node in compared)


def _asked(code: Code, test: ast.expr, module: Module) -> tuple[Module, Function] | None:
    """Return the function that a condition calls, or the method that says whether an object counts as true."""
    if isinstance(test, ast.Call):
        found = code.program.called(test, module)
        return (found[0], found[1]) if found is not None and isinstance(found[1], FUNCTIONS) else None
    return _method_of(code, test, "__bool__", module)


def _has_clock(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a number is computed from the time now: in place, or by a property."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and code.program.name_of(inner.func, module) in _CLOCKS:
            return True
        found = code.program.property_of(inner) if isinstance(inner, ast.Attribute) else None
        if found is not None and any(_has_clock(code, value, found[0]) for value in returned_values(found[1])):
            return True
    return False


def _is_agreed(finder: CollectiveFinder, node: ast.If | ast.While, module: Module) -> bool:
    """Return whether a condition is, or compares, what a function of the program has computed from all ranks."""
    names = (one for one in ast.walk(node.test) if isinstance(one, ast.Name))
    made = [value for name in names if (value := last_value(name, module)) is not None]
    return next(finder.collectives([ast.Expr(value) for value in (node.test, *made)], module), None) is not None


def _is_before(call: ast.AST, node: ast.If) -> TypeGuard[ast.Call]:
    return isinstance(call, ast.Call) and call.lineno < node.lineno


def _inside(body: Iterable[ast.AST]) -> set[ast.AST]:
    return {inner for statement in body for inner in ast.walk(statement)}


def _synchronizes(finder: CollectiveFinder, loop: ast.AST, module: Module) -> bool:
    """Return whether each pass of a loop waits for all ranks: it trains, or calls a collective."""
    wraps = finder.code.wraps_models or any(finder.code.calls(ACCELERATOR))
    if wraps and _trains_inside(finder.code, loop, module):
        return True
    statements = getattr(loop, "body", [])
    if next(finder.collectives(statements, module), None) is not None:
        return True
    return any(finder.name_of(node, module) for node in ast.walk(loop) if isinstance(node, ast.Call))


def _trains_inside(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether a part of a program computes gradients, itself or in the functions and methods that it calls."""
    if trains(node):
        return True
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)) if depth < _DEEPEST else ():
        found = code.program.called(call, module)
        methods = code.program.methods.get(call.func.attr, ()) if isinstance(call.func, ast.Attribute) else ()
        called = (
            [found] if found is not None else [(one[0], one[2]) for one in methods if not _leaves_to_others(one[2])]
        )
        if called and all(one is not node and _trains_inside(code, one, home, depth + 1) for home, one in called):
            return True
        if found is None and _scales_loss(code, call):
            return True
    return False


def _leaves_to_others(method: Function) -> bool:
    """Return whether a method does nothing itself: it is empty, raises an error, or calls that of its base."""
    is_empty = all(isinstance(one, (ast.Pass, ast.Raise, ast.Expr)) for one in method.body) and not trains(method)
    return is_empty or any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(method))


def _scales_loss(code: Code, call: ast.Call) -> bool:
    """Return whether a call is that of an object that computes gradients of a loss: `loss_scaler(loss, optimizer)`."""
    is_given = any("loss" in spelled(given) for given in call.args[:1])
    calls = [method for _, _, method in code.program.methods.get("__call__", ())]
    return is_given and "scaler" in spelled(call.func) and any(map(trains, calls))
