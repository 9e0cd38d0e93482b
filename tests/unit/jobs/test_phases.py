"""The phases of a job, of its submission and of its backend, in one order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobsubmit.backends.models import JobPhase, JobStatus, State
from jobsubmit.jobs.monitor import phases_of


def test_a_queue_in_whole_seconds_begins_after_the_submission() -> None:
    record: Any = SimpleNamespace(steps=(JobPhase("bundle", 10.7, 10.8), JobPhase("upload", 10.8, 11.2)))
    status = JobStatus(State.RUNNING, steps=(JobPhase("queue", 10.0, 11.0), JobPhase("fetch", 11.5, None)))
    _, _, queue, fetch = phases_of(record, status)
    assert (queue.start, queue.end) == (11.2, 11.2)
    assert (fetch.start, fetch.end) == (11.5, None)
