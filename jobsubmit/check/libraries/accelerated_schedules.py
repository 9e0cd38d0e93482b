"""Schedules of the learning rate that Accelerate advances by the steps of all processes."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code, trains
from jobsubmit.check.libraries.prepared import holds_prepared
from jobsubmit.check.origins import origins, words_of
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.wrapper import is_prepare
from jobsubmit.common.finding import Finding

_MAKES_SCHEDULE = re.compile(r"(?:LR|Scheduler|Restarts|WarmUp|Warmup)$|(?:^|_)schedule(?:r|_|$)")
_OF_WORLD = re.compile(r"num_processes|world|n_?gpus?\b|n_?procs?\b", re.IGNORECASE)


def check_accelerated_schedules(code: Code) -> Iterator[Finding]:
    """Yield a warning for a schedule over the steps of one process, or over epochs, that is given to prepare().

    Source: `AcceleratedScheduler.step` of accelerate 0.20 and 1.x makes `num_processes` steps unless `split_batches`.
    """
    prepared = {
        part
        for module, call, _ in code.reached.calls
        for given in (call.args if is_prepare(call) else ())
        for _, part in origins(code, given, module)
        if isinstance(part, ast.Call) and _MAKES_SCHEDULE.search(spelled(part.func))
    }
    if prepared and code.world_size and not _steps_as_called(code):
        yield from itertools.islice(itertools.chain(_of_one_process(code, prepared), _of_epochs(code, prepared)), 1)


def _steps_as_called(code: Code) -> bool:
    """Return whether a setting may have Accelerate make one step for each call."""
    names = {keyword.arg for _, keyword in code.program.of(ast.keyword)} | code.names_in_use
    return not names.isdisjoint(("split_batches", "step_scheduler_with_optimizer"))


def _of_one_process(code: Code, prepared: set[ast.Call]) -> Iterator[Finding]:
    for module, call, _ in code.reached.calls:
        steps = argument(call, "num_training_steps")
        if steps is None or call not in prepared:
            continue
        yield from _divided(code, steps, call, module)
        if _OF_WORLD.search(words_of(code, steps, module)):
            continue
        for home, part in origins(code, steps, module):
            for one in (node for node in walk(part) if isinstance(node, ast.Call)):
                loader = one.args[0] if spelled(one.func) == "len" and one.args else None
                if home.scope_of(one) is module.scope_of(call) and one.lineno > (call.end_lineno or call.lineno):
                    continue  # the number is computed again, after the schedule has it
                if isinstance(loader, ast.Name) and holds_prepared(code, loader, home):
                    yield Finding(
                        "warning",
                        "schedule-length",
                        module.where(call),
                        f"Accelerate advances this schedule by {code.world_size} for each step, but it is made for the "
                        f"steps of one process ({home.where(one)}): it ends too early",
                        "multiply its numbers of steps by accelerator.num_processes, or do not give it to prepare()",
                    )


def _divided(code: Code, steps: ast.expr, call: ast.Call, module: Module) -> Iterator[Finding]:
    """Yield a warning where the number of steps is divided by that of the processes, and not multiplied again."""
    parts = [(home, one) for home, part in origins(code, steps, module) for one in walk(part)]
    if any(_is_scaled(one, ast.Mult) for _, one in parts):
        return
    for home, one in parts:
        if _is_scaled(one, ast.Div, ast.FloorDiv):
            yield Finding(
                "warning",
                "schedule-length",
                module.where(call),
                f"Accelerate advances this schedule by {code.world_size} for each step, and its length is divided "
                f"by the number of processes as well ({home.where(one)}): it ends too early",
                "do not divide it, or do not give the schedule to prepare()",
            )


def _is_scaled(node: ast.AST, *operators: type[ast.operator]) -> bool:
    """Return whether a node multiplies, or divides, by the number of the processes."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, operators):
        return False
    sides = (node.left, node.right) if isinstance(node.op, ast.Mult) else (node.right,)
    return any(spelled(side).endswith("num_processes") for side in sides)


def _of_epochs(code: Code, prepared: set[ast.Call]) -> Iterator[Finding]:
    texts = {call: unparsed(call).lower() for call in prepared}
    of_epochs = {call for call, text in texts.items() if "epoch" in text and not _OF_WORLD.search(text)}
    for module, call, _ in code.reached.calls:
        if (
            getattr(call.func, "attr", "") != "step"
            or call.args
            or call.keywords
            or not _is_once_an_epoch(code, call, module)
        ):
            continue
        stepped = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(stepped, ast.Name) or not holds_prepared(code, stepped, module):
            continue
        if any(part in of_epochs for _, part in origins(code, stepped, module)):
            yield Finding(
                "warning",
                "schedule-length",
                module.where(call),
                f"Accelerate makes {code.world_size} steps of this schedule at once, and this is called once an epoch: "
                "it ends too early",
                "do not give a schedule of epochs to prepare()",
            )


def _is_once_an_epoch(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call comes after the loop over the batches, or after a call of the function that has it."""
    inside: ast.AST = call
    for above in module.above(call):
        if isinstance(above, (ast.For, ast.While)) and inside in above.body:
            return any(_goes_through_batches(code, one, module) for one in above.body)
        if isinstance(above, ast.FunctionDef):
            return any(_goes_through_batches(code, one, module) for one in above.body)
        inside = above
    return False


def _goes_through_batches(code: Code, statement: ast.stmt, module: Module) -> bool:
    """Return whether a statement is a loop that computes gradients, or calls a function with one."""
    if isinstance(statement, (ast.For, ast.While)):
        return trains(statement)
    calls = [node for node in walk(statement) if isinstance(node, ast.Call)]
    if not isinstance(statement, (ast.Assign, ast.Expr)):
        return False
    found = [code.program.called(one, module) for one in calls]
    return any(
        isinstance(inner, ast.For) and trains(inner) for one in found if one is not None for inner in walk(one[1])
    )
