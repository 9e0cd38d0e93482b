"""Gradients that the processes do not exchange before the optimizer uses them."""

from __future__ import annotations

from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.common.finding import Finding


def check_exchanging(code: Code) -> Iterator[Finding]:
    """Yield a warning where the last gradients before a step of the optimizer stay on each process."""
    for gradients, some in (lost for one in code.followed for lost in one.unaveraged):
        yield Finding(
            "warning",
            "never-synchronized",
            gradients.module.where(gradients.call),
            "an earlier backward() of a step averages the gradients, but the last one does not: what the later ones "
            "add stays on each process"
            if some
            else "no backward() of a step averages the gradients: what they add stays on each process",
            "let no_sync() hold in all passes but the last one before optimizer.step()",
        )
        return
