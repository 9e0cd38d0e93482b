"""Summaries of all jobs of this machine. Those of jobs that have ended do not change, and are cached."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from jobsubmit.agent import json_form
from jobsubmit.agent.atomic_write import read_file, replace_file
from jobsubmit.backends.models import JobStatus, State
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError, JobNotFoundError
from jobsubmit.jobs import monitor
from jobsubmit.jobs.records import JobRecord, JobRecords

_REMEMBERED = "ended-jobs.json"
_SUMMARY = (str, str, str, str, int, json_form.TIME, str, str, str, str, (json_form.TIME, None))  # of its fields


class Summary(NamedTuple):
    """What a list shows of a job; `created` and `ended` are in seconds since the epoch."""

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
    ended: float | None = None


@dataclass(frozen=True)
class Filter:
    """Selects jobs by state, by time of creation, and by a pattern (`*` and `?`) for the name or id."""

    states: tuple[State, ...] = ()
    since: float | None = None
    before: float | None = None
    name: str | None = None

    def wants(self, job: Summary) -> bool:
        """Return whether the filter selects a job."""
        return (
            (not self.states or job.state in self.states)
            and (self.since is None or job.created >= self.since)
            and (self.before is None or job.created < self.before)
            and (self.name is None or any(fnmatch.fnmatchcase(text, self.name) for text in (job.name, job.id)))
        )


def summarize_jobs(settings: Settings, chosen: Filter = Filter()) -> list[Summary]:
    """Return the selected jobs, the newest first."""
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
    except (FileNotFoundError, NotADirectoryError):
        return []


def _summary(record: JobRecord, settings: Settings) -> Summary:
    known = record
    try:
        known = monitor.with_handle(record, settings)
        now = monitor.status(known, settings)
    except (BackendError, JobNotFoundError, OSError) as error:  # one engine that is down must not hide all other jobs
        text = error.strerror if isinstance(error, OSError) else error.message
        now = JobStatus(State.UNKNOWN, message=text or str(error))
    job = (record.id, record.name, record.mode, record.backend, record.nodes, record.created)
    return Summary(*job, known.handle, now.state.value, now.reason, now.message, now.ended)


def _remembered(settings: Settings) -> dict[str, tuple[int, Sequence[Any]]]:
    """Return id → (inode of its directory, summary) of jobs that had ended; nothing where that cannot be read."""
    try:
        held = json_form.parse_json(read_file(str(settings.state_dir / _REMEMBERED)))
    except (OSError, ValueError):
        return {}
    if not isinstance(held, dict) or not all(_is_entry(entry) for entry in held.values()):
        return {}
    return held


def _is_entry(entry: object) -> bool:
    match entry:
        case [int(), [*fields]] if len(fields) == len(_SUMMARY) and all(map(json_form.fits, fields, _SUMMARY)):
            return fields[Summary._fields.index("state")] in State.__members__
    return False


def _remember(settings: Settings, found: dict[str, tuple[int, Summary]]) -> None:
    final = {state.value for state in State if state.is_final and state is not State.LOST}
    ended = {job_id: entry for job_id, entry in found.items() if entry[1].state in final}
    with suppress(OSError):  # it is only the faster way
        replace_file(str(settings.state_dir / _REMEMBERED), json.dumps(ended, ensure_ascii=True))
