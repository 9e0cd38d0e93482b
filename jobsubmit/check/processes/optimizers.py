"""When a process makes its optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from jobsubmit.check.code import Code, is_sharding
from jobsubmit.check.interpreter.process import is_optimizer
from jobsubmit.check.program.module import unparsed
from jobsubmit.common.finding import Finding


def check_optimizers_first(code: Code) -> Iterator[Finding]:
    """Yield a warning where the only optimizer is made before the model is sharded."""
    for one in code.followed[:1]:
        events = [event for event in one.events.values() if event.is_sure]
        made = [event for event in events if is_optimizer(event.name)]
        sharded = [event for event in events if is_sharding(event.name)]
        if len(made) == 1 and sharded and events.index(made[0]) < events.index(sharded[0]):
            yield Finding(
                "warning",
                "optimizer-too-early",
                made[0].module.where(made[0].call),
                f"the optimizer gets the parameters of the model before {unparsed(sharded[0].call.func)} "
                f"({sharded[0].module.where(sharded[0].call)}) replaces them: it would update others",
                "shard the model first, then make the optimizer",
            )
