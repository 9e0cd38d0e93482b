"""The jobs of this machine at a glance, however many there are: what has ended does not change and is remembered."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jobsubmit import follow
from jobsubmit.backends import State
from jobsubmit.errors import BackendError, JobNotFoundError
from jobsubmit.jobs import JobRecord, JobRecords
from jobsubmit.settings import Settings

UNKNOWN = "UNKNOWN"  # the state of a job whose engine does not answer
_REMEMBERED = "ended-jobs.json"


class Summary(NamedTuple):
    """Say of a job what a list shows; `created` is in seconds since the epoch."""

    id: str
    name: str
    mode: str
    backend: str
    nodes: int
    created: float
    handle: str
    state: str
    reason: str
    message: str


@dataclass(frozen=True)
class Filter:
    """Choose jobs: in one of some states, created since a time, whose name or id fits a pattern (`*` and `?`)."""

    states: tuple[State, ...] = ()
    since: float | None = None
    before: float | None = None
    name: str | None = None

    def wants(self, job: Summary) -> bool:
        """Tell whether a job is among the chosen."""
        return (
            (not self.states or job.state in self.states)
            and (self.since is None or job.created >= self.since)
            and (self.before is None or job.created < self.before)
            and (self.name is None or any(fnmatch.fnmatchcase(text, self.name) for text in (job.name, job.id)))
        )


def summaries(settings: Settings, chosen: Filter = Filter()) -> list[Summary]:
    """Return the chosen jobs, the newest first."""
    remembered = _remembered(settings)
    found: dict[str, tuple[int, Summary]] = {}
    is_new = False
    for job_id, inode in _directories(settings):
        known = remembered.get(job_id)
        if known is not None and known[0] == inode:
            found[job_id] = (inode, Summary(*known[1]))
        elif record := JobRecords(settings).read(job_id):
            found[job_id] = (inode, _summary(record, settings))
            is_new = True
    if is_new or len(found) < len(remembered):
        _remember(settings, found)
    return sorted((job for _, job in found.values() if chosen.wants(job)), key=lambda job: job.created, reverse=True)


def _directories(settings: Settings) -> list[tuple[str, int]]:
    try:
        with os.scandir(settings.job_dir("")) as entries:
            return [(entry.name, entry.inode()) for entry in entries]
    except FileNotFoundError:
        return []


def _summary(record: JobRecord, settings: Settings) -> Summary:
    known = record
    try:
        known = follow.with_handle(record, settings)
        now = follow.status(known, settings)
        state, reason, message = now.state.value, now.reason, now.message
    except (BackendError, JobNotFoundError) as error:  # one engine that is down shall not hide all other jobs
        state, reason, message = UNKNOWN, "", error.message
    return Summary(
        record.id,
        record.name,
        record.mode,
        record.backend,
        record.nodes,
        record.created,
        known.handle,
        state,
        reason,
        message,
    )


def _remembered(settings: Settings) -> dict[str, tuple[int, Sequence[Any]]]:
    """Return id → (inode of its directory, summary) of jobs that had ended; nothing where that cannot be read."""
    try:
        held: dict[str, tuple[int, Sequence[Any]]] = json.loads((settings.state_dir / _REMEMBERED).read_bytes())
        if not all(len(job) == len(Summary._fields) for _, job in held.values()):
            return {}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return held


def _remember(settings: Settings, found: dict[str, tuple[int, Summary]]) -> None:
    final = {state.value for state in State if state.is_final and state is not State.LOST}
    ended = {job_id: entry for job_id, entry in found.items() if entry[1].state in final}
    temporary = settings.state_dir / f".{_REMEMBERED}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(ended, ensure_ascii=True), encoding="ascii")
        temporary.replace(settings.state_dir / _REMEMBERED)
    except OSError:
        temporary.unlink(missing_ok=True)  # it is only the faster way
