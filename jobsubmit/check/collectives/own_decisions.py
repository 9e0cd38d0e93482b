"""Steps and loops that a rank leaves by its own loss, clock or results: the others wait for it, and the job hangs."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import TypeGuard

from jobsubmit.check.code import Code, trains
from jobsubmit.check.collectives.branches import after
from jobsubmit.check.collectives.calls import CollectiveFinder, finder_of
from jobsubmit.check.collectives.loops import loop_and_tests, synchronizes
from jobsubmit.check.collectives.own_figures import is_own_figure
from jobsubmit.check.collectives.rank_conditions import (
    zero_side,
)
from jobsubmit.check.origins import last_value, seen_through
from jobsubmit.check.program import objects
from jobsubmit.check.program.module import (
    EXITS,
    FUNCTIONS,
    Function,
    Module,
    class_around,
    own_method,
    returned_values,
    spelled,
    unparsed,
)
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_OWN_LOSS = re.compile(
    r"isnan|isfinite|isinf|is_nan|is_finite|inf_or_nan|nan_or_inf"
    r"|\b(?:loss|approx_kl|kl)(?:_value)?(?:\.item\(\))? [<>]|(?<![\w.])(\w+(?:\.\w+\(\))*) != \1$"
)
_LOSS_OF_STEP = re.compile(r"(?:self\.)?(?:(?:train|step|batch|approx)_)?(?:loss|kl)(?:\.\w+\(\))*")
_DEEPEST = 4  # variables and functions behind each other
_CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "datetime.datetime.now", "datetime.datetime.utcnow")
_ARITHMETIC = ("abs", "float", "int", "max", "min", "round", "sum", "divmod")
_OF_NUMBERS = (".total_seconds", ".item")
_IS_EMPTY = re.compile(r"not (\w+)\.any\(\)|(\w+)\.(?:sum|numel)\(\) == 0|len\((\w+)\) == 0")
_OF_LENGTH = re.compile(r"(\w+)\.(?:size\((?!0\))-?\d\)|shape\[(?!0\])-?\d\]) [<>]=? [\w.]+")
_OF_BATCH = re.compile(r"batch|sample|target|label|box|mask|keep|valid|reward|instance|\bgt|positive")
_ERRORS_OF_STEPS = frozenset(
    {"", "Exception", "BaseException", "RuntimeError", "OutOfMemoryError", "ValueError", "AssertionError"}
)
_STOPS_EARLY = re.compile(r"early_?stop|(?:^|\.)stopper$", re.IGNORECASE)


def check_own_decisions(code: Code) -> Iterator[Finding]:
    """Yield a warning for a step or a loop that each rank leaves by what only it knows."""
    if code.world_size == 1:
        return
    finder = finder_of(code)
    yield from _skipped_by_some(finder)
    yield from _skipped_in_error(finder)
    yield from _left_by_clock(finder)
    yield from _stopped_by_own_figure(finder)
    yield from _stopped_by_own_counter(finder)


def _skipped_by_some(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where a rank skips the step that the others synchronize in, because of its own loss."""
    code = finder.code
    for module, node in code.program.of(ast.If):
        is_decided = code.values.truth(node.test, module) is not None
        if is_decided or not code.reached.of(node, module) or zero_side(node.test, code, module) is not None:
            continue
        test = unparsed(node.test)
        is_of_loss = _OWN_LOSS.search(test) is not None or _judges_loss(finder, node.test, module)
        if "norm" in test or not (is_of_loss or _asks_for_nothing(node, module)):
            continue  # the norm of averaged gradients is the same on all ranks
        loop = next((one for one in module.above(node) if isinstance(one, (ast.For, ast.While, *FUNCTIONS))), None)
        if loop is None or _is_of_all_ranks(finder, node, loop, module) or _is_agreed(finder, node, module):
            continue
        last = node.body[-1]
        is_left_for_good = isinstance(last, ast.Break) and isinstance(loop, (ast.For, ast.While))
        is_left = is_left_for_good or isinstance(last, (ast.Continue, ast.Break, ast.Return))
        is_replaced = is_of_loss and any(map(_makes_loss, node.body))
        rest = after(node, module) if is_left else module.scope_of(node).body if is_replaced else node.body
        if synchronizes(finder, loop if is_left_for_good else ast.Module(body=rest, type_ignores=[]), module):
            test = unparsed(node.test)
            of = "loss" if is_of_loss else "data"
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                f"a rank whose own {of} fulfils `{test}` leaves this loop, and the others wait for its gradients: the "
                "job would hang"
                if is_left_for_good
                else f"a rank whose own {of} fulfils `{test}` skips this step, and the others wait for its gradients: "
                "the job would hang"
                if is_left or is_replaced
                else f"a rank whose own {of} does not fulfil `{test}` skips this step, and the others wait for its "
                "gradients: the job would hang",
                "decide for all ranks: all_reduce the condition, then do the same everywhere",
            )
            return


def _skipped_in_error(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where a rank goes on after an error in its step: `except RuntimeError: continue`."""
    code = finder.code
    for module, node in code.program.of(ast.Try):
        if any(getattr(one, "arg", "") == "throw_on_early_termination" for one in walk(node)):
            continue  # Join raises the error on all ranks
        loop, _ = loop_and_tests(node, module)
        step = ast.Module(body=node.body, type_ignores=[])
        around = loop if loop is not None else module.scope_of(node)
        if (
            not code.reached.of(node, module)
            or not (loop is not None or trains(step))
            or not _steps(code, around, module)
        ):
            continue
        handler = next((one for one in node.handlers if _goes_on(finder, one, module)), None)
        if handler is not None and synchronizes(finder, step, module):
            caught = " ".join(["except", *([] if handler.type is None else [unparsed(handler.type)])])
            yield Finding(
                "warning",
                "left-by-one",
                module.where(handler),
                f"a rank on which this step fails goes on (`{caught}`), and the others wait for its gradients: the job "
                "would hang",
                "let the error end the job: raise it again",
            )
            return


def _steps(code: Code, around: ast.AST, module: Module) -> bool:
    """Return whether a loop or function steps an optimizer, itself or in what it calls: it does not only measure."""
    entered = (code.program.called(one, module) for one in walk(around) if isinstance(one, ast.Call))
    nodes = [around, *(found[1] for found in entered if found is not None)]
    return any(isinstance(one, ast.Attribute) and one.attr == "step" for node in nodes for one in walk(node))


def _goes_on(finder: CollectiveFinder, handler: ast.ExceptHandler, module: Module) -> bool:
    """Return whether a rank goes on after an error that may come up on it alone."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"" if one is None else spelled(one).rpartition(".")[2] for one in caught}
    makes_up = synchronizes(finder, handler, module)  # with gradients of zeros, or by asking the others
    return bool(names & _ERRORS_OF_STEPS) and not _ends(handler.body) and not makes_up


def _ends(body: list[ast.stmt]) -> bool:
    """Return whether a block surely raises an error or ends the process."""
    for statement in body:
        if isinstance(statement, ast.Raise):
            return True
        if any(isinstance(one, (ast.Continue, ast.Break, ast.Return)) for one in walk(statement)):
            return False
        if isinstance(statement, ast.If) and statement.orelse and _ends(statement.body) and _ends(statement.orelse):
            return True
        called = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(called, ast.Call) and spelled(called.func) in EXITS:
            return True
    return False


def _makes_loss(statement: ast.stmt) -> bool:
    """Return whether a loss is replaced by one that no model has part in: `torch.tensor(0.0, requires_grad=True)`."""
    made = statement.value if isinstance(statement, ast.Assign) else None
    is_new = isinstance(made, ast.Call) and spelled(made.func) in ("torch.tensor", "torch.zeros", "torch.ones")
    return is_new and any(keyword.arg == "requires_grad" for keyword in getattr(made, "keywords", ()))


def _asks_for_nothing(node: ast.If, module: Module) -> bool:
    """Return whether a step is left out because of a batch: `if not mask.any()`, `if x.size(1) > 512: continue`."""
    asked = _IS_EMPTY.fullmatch(unparsed(node.test))
    is_of_batch = asked is not None and any(name and _OF_BATCH.search(name) for name in asked.groups())
    is_of_batch = is_of_batch or _asks_for_length(node.test, module)
    parts = [one for part in node.body for one in walk(part)]
    computes = any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in parts)
    return is_of_batch and not computes and not node.orelse and isinstance(node.body[-1], (ast.Continue, ast.Return))


def _asks_for_length(test: ast.expr, module: Module) -> bool:
    """Return whether a condition is about how long the samples of a batch are: the first number says how many."""
    found = _OF_LENGTH.fullmatch(unparsed(test))
    loop = next((above for above in module.above(test) if isinstance(above, ast.For)), None)
    looped = {node.id for node in walk(loop.target) if isinstance(node, ast.Name)} if loop is not None else set()
    return found is not None and found[1] in looped


def _is_of_all_ranks(finder: CollectiveFinder, node: ast.If | ast.While, loop: ast.AST, module: Module) -> bool:
    """Return whether what a condition is made of went through a collective before, or in the pass before."""
    names = _variables_behind(node.test, module)
    for call in (one for one in walk(loop) if _is_before(one, node) and finder.may_combine(one, module)):
        statement = next((above for above in module.above(call) if isinstance(above, ast.stmt)), call)
        changed = [*call.args[:1], *getattr(statement, "targets", ())]
        if names & {one.id for given in changed for one in walk(given) if isinstance(one, ast.Name)}:
            return True
    return False


def _variables_behind(node: ast.expr, module: Module) -> set[str]:
    """Return the variables in an expression, and those of this function that they are computed from."""
    scope, found = module.scope_of(node), set[str]()
    waiting: list[ast.AST] = [node]
    while waiting:
        names = {one.id for one in walk(waiting.pop()) if isinstance(one, ast.Name)} - {*module.aliases} - found
        found |= names
        stores = (store for name in names for store in module.stores.get((scope, name), ()))
        statements = (next(above for above in module.above(store) if isinstance(above, ast.stmt)) for store in stores)
        waiting += [value for one in statements if (value := getattr(one, "value", None)) is not None]
    return found


def _judges_loss(finder: CollectiveFinder, test: ast.expr, module: Module) -> bool:
    """Return whether a condition is what a function or an object makes of a rank's own loss: `accept(loss)`."""
    call = test.operand if isinstance(test, ast.UnaryOp) else test
    if not isinstance(call, ast.Call) or not any(_LOSS_OF_STEP.fullmatch(unparsed(given)) for given in call.args):
        return False
    found = finder.code.program.called(call, module) or _method_of(finder.code, call.func, "__call__", module)
    if found is None and isinstance(call.func, ast.Attribute):
        found = _method_of(finder.code, call.func.value, call.func.attr, module)
    if found is None or not isinstance(found[1], FUNCTIONS):
        return False
    asks = [node for node in walk(found[1]) if isinstance(node, (ast.Compare, ast.Attribute))]
    compares = any(isinstance(node, ast.Compare) or _OWN_LOSS.search(node.attr) for node in asks)
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
        loop = node if isinstance(node, ast.While) else _loop_left_by(code, node, module)
        if loop is None or not code.reached.of(node, module) or zero_side(node.test, code, module) is not None:
            continue
        if not _reads_clock(code, node.test, module):
            continue
        if _is_agreed(finder, node, module) or _is_of_all_ranks(finder, node, loop, module):
            continue
        if synchronizes(finder, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(node),
                f"each rank leaves this loop by its own clock (`{unparsed(node.test)}`): a rank that does one step "
                "more waits for the others, and the job would hang",
                "let rank 0 decide for all: broadcast the decision, and leave the loop on every rank",
            )
            return


def _stopped_by_own_figure(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where early stopping decides by what one rank has seen: the ranks leave in different epochs."""
    for module, call, _ in finder.code.reached.calls:
        loop, _ = loop_and_tests(call, module)
        name = spelled(call.func).removesuffix(".step")
        if not call.args or loop is None or not _STOPS_EARLY.search(name):
            continue
        statement = next(above for above in module.above(call) if isinstance(above, ast.stmt))
        targets = (part for target in getattr(statement, "targets", ()) for part in walk(target))
        asked = {name, *(target.id for target in targets if isinstance(target, ast.Name))}
        leaves_loop = any(
            isinstance(inner, (ast.Break, ast.Return))
            and any(isinstance(above, ast.If) and _names_any(above.test, asked) for above in module.above(inner))
            for inner in walk(loop)
        )
        if leaves_loop and is_own_figure(finder, call.args[0], module) and synchronizes(finder, loop, module):
            yield Finding(
                "warning",
                "left-by-one",
                module.where(call),
                f"each rank gives {name}() a figure of its own data: one rank would leave this loop before the others, "
                "and the job would hang",
                "average the figure over all ranks first: all_reduce()",
            )
            return


def _names_any(test: ast.expr, names: Collection[str]) -> bool:
    """Return whether a condition is made of one of some variables and functions."""
    parts = (one for one in walk(test) if isinstance(one, (ast.Name, ast.Attribute)))
    return any(spelled(one) in names or spelled(one).rpartition(".")[0] in names for one in parts)


def _stopped_by_own_counter(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning where a loop ends after some results that are no better, and each rank counts those of its own.

    `if loss < best: bad = 0 else: bad += 1`, and then `if bad >= 5: break`; or `epoch - best_epoch >= 5`.
    """
    for module, node in finder.code.program.of(ast.If):
        loop = _loop_left_by(finder.code, node, module)
        test = node.test
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):  # `patience and bad >= patience`
            test = next((one for one in test.values if isinstance(one, ast.Compare)), test)
        counter = test.left if isinstance(test, ast.Compare) else None
        counter = counter.right if isinstance(counter, ast.BinOp) and isinstance(counter.op, ast.Sub) else counter
        name = spelled(counter) if counter is not None else ""
        if loop is None or not name or not finder.code.reached.of(node, module):
            continue
        for judged in _judged_for(name, loop, module):
            sides = (judged.left, *judged.comparators)
            own = next((one for one in sides if is_own_figure(finder, one, module)), None)
            if own is not None and synchronizes(finder, loop, module) and not _is_combined(finder, name, loop, module):
                yield Finding(
                    "warning",
                    "left-by-one",
                    module.where(node),
                    f"each rank counts in {name} by a figure of its own data ({unparsed(own)}): one rank would "
                    "leave this loop before the others, and the job would hang",
                    "average the figure over all ranks first: all_reduce()",
                )
                return


def _judged_for(counter: str, loop: ast.AST, module: Module) -> Iterator[ast.Compare]:
    """Yield the comparisons that decide whether a loop counts one more or keeps a step; a method may do so, too."""
    owner = class_around(loop, module) if counter.startswith("self.") else None
    nodes = walk(owner if owner is not None else loop)
    for added in (one for one in nodes if _sets_more(one, counter)):
        around = next((above for above in module.above(added) if isinstance(above, ast.If)), None)
        test = around.test if around is not None else None
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            yield test


def _sets_more(node: ast.AST, counter: str) -> bool:
    """Return whether a statement adds to a counter, or sets it, alone or with others, to the number of the step."""
    match node:
        case ast.AugAssign(target=target):
            return spelled(target) == counter
        case ast.Assign(targets=[ast.Tuple(elts=targets), *_]):
            return any(spelled(one) == counter for one in targets)
        case ast.Assign(targets=[target, *_], value=value):
            return spelled(target) == counter and bool(spelled(value))
    return False


def _is_combined(finder: CollectiveFinder, counter: str, loop: ast.AST, module: Module) -> bool:
    """Return whether a collective gets a counter."""
    calls = [one for one in walk(loop) if isinstance(one, ast.Call) and finder.may_combine(one, module)]
    return any(spelled(inner) == counter for call in calls for one in call.args for inner in walk(one))


def _loop_left_by(code: Code, node: ast.If, module: Module) -> ast.For | ast.While | None:
    """Return the loop that a condition surely leaves."""
    if not isinstance(node.body[-1], (ast.Break, ast.Return)):
        return None
    loop, tests = loop_and_tests(node.body[-1], module)
    others = {one for one in tests if not _is_now_and_then(one.test) and not code.values.truth(one.test, module)}
    tests = [one for one in tests if one is node or one in others]
    around = [one.orelse for one in tests[1:]]  # `if loss < best: … elif …: break`
    return loop if tests[:1] == [node] and around in ([], [[node]]) else None


def _is_now_and_then(test: ast.expr) -> bool:
    """Return whether a condition holds in every so many epochs or steps, on all ranks: `(epoch + 1) % 5 == 0`."""
    return any(isinstance(node, ast.Mod) for node in walk(test))


def _reads_clock(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition surely compares a time with a limit, itself or in the method that it calls."""
    made = seen_through(test, module) or test
    nodes: list[tuple[Module, ast.expr]] = [(module, made)]
    if (function := _asked(code, test, module) or _asked(code, made, module)) is not None:
        nodes = [(function[0], value) for value in returned_values(function[1])]
        if any(_has_clock(code, one, function[0]) for one in _tests_for_true(*function)):
            return True
    for home, node in nodes:
        parts = node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else ()
        timed = [part for part in parts if isinstance(part, ast.Compare) and _has_clock(code, part, home)]
        if timed and all(part in timed or code.values.truth(part, home) for part in parts):
            return True
    compared = [(home, node) for home, node in nodes if isinstance(node, ast.Compare)]
    return bool(compared) and all(_has_clock(code, node, home) for home, node in compared)


def _tests_for_true(module: Module, function: Function) -> Iterator[ast.expr]:
    """Yield the conditions under which a function returns True, with what their variables were set to."""
    for returned in (one for one in walk(function) if isinstance(one, ast.Return)):
        above = module.parents.get(returned)
        if isinstance(above, ast.If) and getattr(returned.value, "value", None) is True:
            names = (one for one in walk(above.test) if isinstance(one, ast.Name))
            yield from (value for name in names if (value := last_value(name, module)) is not None)
            yield above.test


def _asked(code: Code, test: ast.expr, module: Module) -> tuple[Module, Function] | None:
    """Return the function that a condition calls, or the method that says whether an object counts as true."""
    if isinstance(test, ast.Call):
        found = code.program.called(test, module)
        return (found[0], found[1]) if found is not None and isinstance(found[1], FUNCTIONS) else None
    return _method_of(code, test, "__bool__", module)


def _has_clock(code: Code, node: ast.expr, module: Module, depth: int = 0) -> bool:
    """Return whether a number is computed from the time now: in place, by a property or function, or in a variable."""
    if _asks_clock(code, node, module):
        return True
    for inner in _numbers_in(node) if depth < _DEEPEST else ():
        if isinstance(inner, ast.Name):
            if any(_has_clock(code, one, module, depth + 1) for one in _set_in_loops(inner, module)):
                return True
            continue
        found = code.program.property_of(inner) if isinstance(inner, ast.Attribute) else None
        entered = code.program.called(inner, module) if isinstance(inner, ast.Call) else found
        values = returned_values(entered[1]) if entered is not None and isinstance(entered[1], FUNCTIONS) else ()
        if entered is not None and any(_has_clock(code, value, entered[0], depth + 1) for value in values):
            return True
    return False


def _numbers_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression that may be numbers: of a call, not what an unknown function is given."""
    yield node
    if isinstance(node, ast.Call):
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_of_number = not isinstance(owner, ast.Name) or spelled(node.func).endswith(_OF_NUMBERS)
        parts = [*node.args] if spelled(node.func) in _ARITHMETIC else []
        parts += [owner] if owner is not None and is_of_number else []
    else:
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    for part in parts:
        yield from _numbers_in(part)


def _asks_clock(code: Code, node: ast.AST, module: Module) -> bool:
    calls = (one for one in walk(node) if isinstance(one, ast.Call))
    return any(code.program.name_of(call.func, module) in _CLOCKS for call in calls)


def _set_in_loops(name: ast.Name, module: Module) -> Iterator[ast.expr]:
    """Yield what a variable is set to in the loops around its use, or added to it there."""
    around = {name, *module.above(name)}
    for store in module.stores.get((module.scope_of(name), name.id), ()):
        statement = module.parents.get(store)
        is_in_loop = any(isinstance(one, (ast.For, ast.While)) and one in around for one in module.above(store))
        if is_in_loop and isinstance(statement, (ast.Assign, ast.AugAssign)):
            yield statement.value


def _is_agreed(finder: CollectiveFinder, node: ast.If | ast.While, module: Module) -> bool:
    """Return whether a condition is, or compares, what a function of the program has computed from all ranks."""
    names = (one for one in walk(node.test) if isinstance(one, ast.Name))
    made = [value for name in names if (value := last_value(name, module)) is not None]
    return next(finder.collectives([ast.Expr(value) for value in (node.test, *made)], module), None) is not None


def _is_before(call: ast.AST, node: ast.If | ast.While) -> TypeGuard[ast.Call]:
    return isinstance(call, ast.Call) and (isinstance(node, ast.While) or call.lineno < node.lineno)
