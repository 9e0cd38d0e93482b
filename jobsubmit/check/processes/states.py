"""States that only one of the followed processes loads."""

from __future__ import annotations

from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.own import is_wrapping
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.processes.pairs import are_parted
from jobsubmit.check.program.module import unparsed
from jobsubmit.common.finding import Finding


def check_states(code: Code) -> Iterator[Finding]:
    """Yield a warning where only the first process loads a state, after the model was wrapped."""
    processes = code.followed_whole
    if len(processes) < 2:  # noqa: PLR2004
        return
    one, others = processes[0], processes[1:]
    before = _before_training(one)
    wraps = [index for index, event in enumerate(before) if is_wrapping(event.name)]
    for index, event in enumerate(before):
        is_load = event.last == "load_state_dict" and not any(event.path in other.events for other in others)
        if "ema" in unparsed(event.call.func).lower():
            continue  # a moving average that only the first process has
        module = code.module_of(event.call, event)
        is_load = is_load and all(are_parted(event.call, module, one, other) for other in others)
        is_shared = any(later.last.startswith("broadcast") for later in before[index:])
        if is_load and wraps and wraps[0] < index and not is_shared and not _loads_too(others, before):
            yield Finding(
                "warning",
                "loaded-by-one",
                module.where(event.call),
                "only rank 0 loads this state: the other ranks begin anew, and may run other numbers of steps",
                "load the checkpoint on every rank (map_location), or broadcast it",
            )
            return


def _before_training(one: Followed) -> list[Event]:
    events = list(one.events.values())
    starts = [index for index, event in enumerate(events) if event.last == "backward"]
    return events[: starts[0]] if starts else []


def _loads_too(others: list[Followed], before: list[Event]) -> bool:
    """Return whether another process loads a state that the first one does not: each loads its own."""
    known = {event.path for event in before}
    paths = (path for one in others for path, event in one.events.items() if event.last == "load_state_dict")
    return any(path not in known for path in paths)
