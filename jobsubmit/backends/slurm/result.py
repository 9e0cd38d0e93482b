"""What Slurm says of a job, made exact by what its nodes wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobsubmit.backends import JobStatus, State
from jobsubmit.backends.gang import told_status, told_steps
from jobsubmit.node.gang import files

if TYPE_CHECKING:
    from jobsubmit.backends.slurm.folder import Folder

_LAST_WORDS = 5
# What the nodes say of these is told by the engine better: they were ended by it.
_BY_THE_ENGINE = ("TIMEOUT", "NODE_FAILED", "PREEMPTED")


def completed(told: JobStatus, folder: Folder, attempt: int) -> JobStatus:
    """Return a status with what the nodes wrote in an attempt: how far they are, or who failed first and why."""
    steps = (*told.steps, *told_steps(_first_node_events(folder)))
    told = replace(told, steps=steps)
    if told.state in (State.QUEUED, State.RECOVERING):
        return told
    statuses = folder.statuses(attempt)
    if not told.state.is_final:
        return _running(told, statuses, is_cancelled=(folder.directory / files.CANCEL).exists())
    outcome = folder.outcome(attempt)
    if outcome is not None and told.reason not in _BY_THE_ENGINE:
        gang = told_status({**statuses[0], **outcome.as_status()}, ())
        return replace(gang, steps=steps, details={**told.details, **gang.details})
    if told.state is State.FAILED and not told.message:
        return replace(told, message="; ".join(folder.last_words(_LAST_WORDS)) or "its log says nothing")
    return told


def _running(told: JobStatus, statuses: list[dict[str, Any]], *, is_cancelled: bool) -> JobStatus:
    states = {status["state"] for status in statuses}
    state = told.state
    if state is State.RUNNING and states <= {"STARTING"}:
        state = State.STARTING
    notes = [note for status in statuses for note in status.get("notes", ())]
    details = {**told.details, **({"notes": notes} if notes else {})}
    return replace(told, state=State.CANCELLING if is_cancelled else state, details=details)


def _first_node_events(folder: Folder) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for attempt in folder.attempts():
        for path in list(folder.node_dirs(attempt).values())[:1]:
            found += files.EventReader(str(path)).new()
    return found
