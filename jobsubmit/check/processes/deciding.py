"""What each process decides by its own part of the data, although it concerns all of them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.own import Decision
from jobsubmit.check.program.module import unparsed
from jobsubmit.common.finding import Finding


def check_deciding(code: Code) -> Iterator[Finding]:
    """Yield a warning where a process leaves a loop, or skips a step, because of its own data."""
    for decision in _first(code, "only", "skip", "leave"):
        yield Finding(
            "warning",
            "left-by-one",
            decision.module.where(decision.node),
            _describe(decision),
            "decide for all ranks: all_reduce the condition, then do the same everywhere",
        )


def _describe(decision: Decision) -> str:
    test, last = unparsed(decision.node), decision.waits[-1]
    if set(decision.waits) == {"step"}:
        return f"each rank decides by its own data (`{test}`) whether it updates its model: the models drift apart"
    waits = "the others wait for its gradients" if last in ("backward", "step") else f"the others wait in {last}()"
    if decision.how == "leave":
        return f"each rank decides by its own data (`{test}`) whether it leaves this loop: {waits}, and the job hangs"
    return f"each rank decides by its own data (`{test}`) whether it skips this step: {waits}, and the job hangs"


def check_judging(code: Code) -> Iterator[Finding]:
    """Yield a warning where a process judges the model by its own part of the data."""
    for decision in _first(code, "save"):
        yield Finding(
            "warning",
            "part-as-whole",
            decision.module.where(decision.node),
            f"`{unparsed(decision.node)}` decides which model is saved, but each process has computed it on its "
            "own part of the data",
            "combine the results of all processes first: dist.all_reduce, or gather_for_metrics with Accelerate",
        )


def check_scheduling(code: Code) -> Iterator[Finding]:
    """Yield a warning where a scheduler is given what only this process has computed."""
    for decision in _first(code, "step"):
        yield Finding(
            "warning",
            "own-learning-rate",
            decision.module.where(decision.node),
            "each rank gives this scheduler a value from its own part of the data: the learning rates differ",
            "average it over all ranks first: dist.all_reduce",
        )


def _first(code: Code, *hows: str) -> Iterator[Decision]:
    """Yield the first decision of these kinds, if the followed processes take one."""
    yield from itertools.islice((decision for decision in _decisions(code) if decision.how in hows), 1)


def _decisions(code: Code) -> Iterator[Decision]:
    """Yield what the followed processes decide, each of them once."""
    seen: set[ast.expr] = set()
    for one in code.followed:
        for node, decision in one.decisions.items():
            if node not in seen:
                seen.add(node)
                yield decision
