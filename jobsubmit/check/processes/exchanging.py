"""Gradients that the processes do not exchange before the optimizer uses them."""

from __future__ import annotations

from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.rehearsal import Lost
from jobsubmit.common.finding import Finding


def check_exchanging(code: Code) -> Iterator[Finding]:
    """Yield a warning where the last gradients before a step of the optimizer stay on each process."""
    for lost in (one for process in code.followed for one in process.unaveraged):
        yield Finding(
            "warning",
            "never-synchronized",
            lost.gradients.module.where(lost.gradients.call),
            _text_of(lost),
            "let no_sync() hold in all passes but the last one before optimizer.step()",
        )
        return


def _text_of(lost: Lost) -> str:
    if lost.is_at_end:
        return (
            "if an epoch ends with fewer parts than a step has, the optimizer steps, and no backward() of these parts "
            "averages the gradients: what they add stays on each process"
        )
    if lost.some:
        return (
            "an earlier backward() of a step averages the gradients, but the last one does not: what the later ones "
            "add stays on each process"
        )
    return "no backward() of a step averages the gradients: what they add stays on each process"
