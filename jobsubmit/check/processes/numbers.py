"""Numbers with which a process cannot compute."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.common.finding import Finding


def check_divisors(code: Code) -> Iterator[Finding]:
    """Yield a warning where every process that was followed divides by zero, at least the first time."""
    if not code.followed:
        return
    first, *others = code.followed
    for node, module in first.by_zero.items():
        if all(node in one.by_zero for one in others):
            divisor = node.right if isinstance(node, ast.BinOp) else node.value
            said = f"`{ast.unparse(node)}` divides by zero: {ast.unparse(divisor)} is 0 in this job"
            yield Finding(
                "warning", "unfulfilled", module.where(node), said, "change the values from which it is computed"
            )
            return
