"""Numbers with which a process cannot compute, and conditions on them by which it ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_MOST_VALUES = 3
_CHANGE = "change the values from which it is computed"


def check_divisors(code: Code) -> Iterator[Finding]:
    """Yield a warning where a process that was followed divides by zero, at least the first time."""
    for node, module in ((node, module) for one in code.followed for node, module in one.by_zero.items()):
        divisor = node.right if isinstance(node, ast.BinOp) else node.value
        said = f"`{unparsed(node)}` divides by zero: {unparsed(divisor)} is 0 in this job"
        yield Finding("warning", "unfulfilled", module.where(node), said, _CHANGE)
        return


def check_failing(code: Code) -> Iterator[Finding]:
    """Yield a warning where an assertion fails, or an error is raised, in each process with the values of the job."""
    if not code.followed:
        return
    first = code.followed[0]
    for node, module in first.failed.items():
        said = _reason_of(first, node, module)
        if said and all(node in one.failed for one in code.followed):
            yield Finding("warning", "unfulfilled", module.where(node), said, _CHANGE)
            return


def _reason_of(one: Followed, node: ast.Assert | ast.Raise, module: Module) -> str:
    """Return why a process ends, with the values that decide it; empty if these are not known."""
    if isinstance(node, ast.Assert):
        values = _values_in(one, node.test)
        return f"the assertion `{unparsed(node.test)}` fails: {values}" if values else ""
    above = module.parents.get(node)
    if not isinstance(above, ast.If) or node.exc is None or "Exit" in unparsed(node.exc):
        return ""  # it may end without an error
    values = _values_in(one, above.test)
    if not values:
        return ""
    if node in above.body:
        return f"the program ends with an error, because `{unparsed(above.test)}` holds: {values}"
    return f"the program ends with an error, because `{unparsed(above.test)}` does not hold: {values}"


def _values_in(one: Followed, test: ast.expr) -> str:
    """Return the numbers and texts in a condition: `batch is 40, world is 16`."""
    known: dict[str, Any] = {}
    for node in walk(test):
        value = one.values.get(node, UNKNOWN)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(value, (int, float, str)):
            known.setdefault(unparsed(node), value)
    return ", ".join(f"{name} is {value!r}" for name, value in [*known.items()][:_MOST_VALUES])
