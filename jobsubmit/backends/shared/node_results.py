"""The status that a platform reports, with details from the files of the nodes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from jobsubmit.agent.events import EventReader
from jobsubmit.backends.models import JobPhase, JobStatus, Recovery, State
from jobsubmit.backends.shared.agent_status import parse_status, parse_steps

if TYPE_CHECKING:
    from jobsubmit.agent.protocol import Event, NodeStatus
    from jobsubmit.backends.shared.shared_folder import SharedFolder

_LAST_WORDS = 5
# What the nodes say of these is known better by the platform, which ended them.
_BY_THE_ENGINE = ("TIMEOUT", "NODE_FAILED", "PREEMPTED")


def complete_status(reported: JobStatus, folder: SharedFolder, attempt: int) -> JobStatus:
    """Return a status with what the nodes wrote in an attempt: their progress, or which failed first and why."""
    steps = (*reported.steps, *parse_steps(first_node_events(folder)))
    reported = replace(reported, steps=steps, recoveries=tuple(_recoveries(folder, steps)))
    if reported.state in (State.QUEUED, State.RECOVERING):
        return reported
    statuses = folder.statuses(attempt)
    if not reported.state.is_final:
        return _running(reported, statuses, is_cancelled=folder.is_cancel_asked())
    outcome = folder.outcome(attempt)
    if outcome is not None and reported.reason not in _BY_THE_ENGINE:
        nodes = parse_status({**statuses[0], **outcome.as_status()}, ())
        if reported.reason == "OOM" and nodes.failure and nodes.failure.signal == signal.SIGKILL:
            nodes = replace(nodes, reason="OOM")
        return replace(
            nodes, steps=steps, recoveries=reported.recoveries, details={**reported.details, **nodes.details}
        )
    if reported.state is State.CANCELLED and not reported.message and not folder.is_cancel_asked():
        return replace(reported, message="scancel ended the job, or Slurm did because a node could not launch it")
    if reported.state is State.FAILED and not reported.message:
        return replace(reported, message="; ".join(folder.last_words(_LAST_WORDS)) or "its log is empty or missing")
    return reported


def _recoveries(folder: SharedFolder, steps: tuple[JobPhase, ...]) -> Iterator[Recovery]:
    """Yield what each restart has cost, as far as the nodes of the attempt before could tell why."""
    for attempt in folder.attempts()[1:]:
        before = folder.statuses(attempt - 1)
        outcome = folder.outcome(attempt - 1)
        ended = max((status.get("ended") or 0.0 for status in before), default=0.0)
        failure = outcome.failure if outcome else None
        struck = (failure.get("evidence", {}).get("t") if failure else None) or ended
        back = [step.start for step in steps if step.attempt == attempt and step.name == "training"]
        reason = outcome.reason if outcome else "the loss of a node"
        if struck:
            what = f"restart {attempt} after {reason}"
            yield Recovery(what, "", struck, max(struck, ended), back[0] if back else None, None)


def _running(reported: JobStatus, statuses: list[NodeStatus], *, is_cancelled: bool) -> JobStatus:
    states = {status["state"] for status in statuses}
    state = reported.state
    if state is State.RUNNING and states <= {"STARTING"}:
        state = State.STARTING
    notes = [note for status in statuses for note in status.get("notes", ())]
    details = {**reported.details, **({"notes": notes} if notes else {})}
    return replace(reported, state=State.CANCELLING if is_cancelled else state, details=details)


def first_node_events(folder: SharedFolder) -> list[Event]:
    first = (path for attempt in folder.attempts() for path in list(folder.node_dirs(attempt).values())[:1])
    return [event for path in first for event in EventReader(str(path)).new()]
