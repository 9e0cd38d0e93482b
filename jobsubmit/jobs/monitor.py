"""Follow, cancel and delete a job that was submitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from jobsubmit.backends.models import EVERYTHING, JobHandle, JobPhase, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.registry import open_backend
from jobsubmit.backends.shared.polling import TolerantPoll
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError, JobNotFoundError, UsageError
from jobsubmit.jobs.records import JobRecord, JobRecords

_POLL_SECONDS = 0.1
_LONGEST_POLL_SECONDS, _SLOWER = 0.5, 1.05  # so that watching a long job costs next to nothing
_WAITING = (State.PENDING, State.QUEUED)

OnWait: TypeAlias = Callable[[JobStatus, float], object]


def with_handle(record: JobRecord, settings: Settings) -> JobRecord:
    """Return a record with its handle, even if the client died before it could store the handle."""
    is_certain = record.handle or record.damage or (record.problem and not record.is_unsure)
    if is_certain or JobRecords(settings).is_submitting(record):
        return record
    found = open_backend(record.backend, settings).find(record.id)
    return replace(record, handle=str(found)) if found else record


def status(record: JobRecord, settings: Settings) -> JobStatus:
    """Return the current status of a job, whether or not it reached a backend."""
    if record.damage:
        return JobStatus(State.UNKNOWN, "DAMAGED", record.damage)
    record = with_handle(record, settings)
    if record.handle:
        return _status_of_submitted(record, settings)
    if record.problem:
        return _status_of_unsubmitted(record, settings)
    records = JobRecords(settings)
    if records.is_submitting(record):
        return JobStatus(State.PENDING, "SUBMITTING", "it is being submitted")
    written_since = records.read(record.id)
    if written_since not in (None, record):
        return status(written_since, settings)
    return JobStatus(State.LOST, "NOT_SUBMITTED", "the client died before it had submitted the job")


def _status_of_submitted(record: JobRecord, settings: Settings) -> JobStatus:
    now = open_backend(record.backend, settings).status(JobHandle.parse(record.handle))
    if now.failure is None:
        return now
    from jobsubmit.jobs.missing import explain_what_is_missing

    return replace(now, failure=explain_what_is_missing(now.failure, record, JobRecords(settings).files(record.id)))


def _status_of_unsubmitted(record: JobRecord, settings: Settings) -> JobStatus:
    if JobRecords(settings).is_cancel_asked(record):
        return JobStatus(State.CANCELLED, "NOT_SUBMITTED", record.problem)
    return JobStatus(State.FAILED, "NOT_SUBMITTED", f"it was not submitted: {record.problem}")


def _read_again(record: JobRecord, settings: Settings) -> JobRecord:
    """Return a record as it is now, or as it was where it cannot be read just now."""
    now = JobRecords(settings).read(record.id)
    return now if now is not None and (record.damage or not now.damage) else record


def logs(
    record: JobRecord,
    settings: Settings,
    query: LogQuery = EVERYTHING,
    *,
    follow: bool = False,
    on_wait: OnWait | None = None,
) -> Iterator[LogLine]:
    """Yield the log lines of a job that match a query; with `follow`, until the job has ended.

    With `follow`, while the job has not started, `on_wait` receives its status and the seconds waited so far.
    """
    begun, poll = time.monotonic(), TolerantPoll()
    while follow and ((now := poll.ask(partial(status, record, settings))) is None or now.state in _WAITING):
        if on_wait and now:
            on_wait(now, time.monotonic() - begun)
        time.sleep(_POLL_SECONDS)
        record = _read_again(record, settings)
    record = with_handle(record, settings)
    if not record.handle:
        return iter(())
    backend = open_backend(record.backend, settings)
    return backend.logs(JobHandle.parse(record.handle), query, follow=follow)


def phases_of(record: JobRecord, status: JobStatus) -> tuple[JobPhase, ...]:
    """Return the phases of a job: those of its submission, then those of the backend, which begin after it.

    Slurm reports whole seconds, rounded down.
    """
    submitted = max((phase.end for phase in record.steps if phase.end), default=0.0)
    starts = [max(phase.start, submitted) for phase in status.steps]
    later = [
        replace(phase, start=start, end=phase.end and max(phase.end, start))
        for phase, start in zip(status.steps, starts, strict=True)
    ]
    return (*record.steps, *later)


def events(record: JobRecord, settings: Settings) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a job that the backend recorded: mappings with "t" (seconds since the epoch) and "event"."""
    record = with_handle(record, settings)
    if record.handle and not record.damage:
        yield from open_backend(record.backend, settings).events(JobHandle.parse(record.handle))


def timings(record: JobRecord, settings: Settings) -> Iterator[bytes]:
    """Yield the timing file of each process of a profiled job (see Backend)."""
    record = with_handle(record, settings)
    if record.handle and not record.damage:
        yield from open_backend(record.backend, settings).timings(JobHandle.parse(record.handle))


def stacks(record: JobRecord, settings: Settings) -> Mapping[int, bytes]:
    """Return the stacks of each rank when the job hung, by rank (see Backend)."""
    record = with_handle(record, settings)
    if not record.handle or record.damage:
        return {}
    return open_backend(record.backend, settings).stacks(JobHandle.parse(record.handle))


def wait(
    record: JobRecord, settings: Settings, timeout: float | None = None, on_wait: OnWait | None = None
) -> JobStatus:
    """Return the status once it can no longer change, or after `timeout` seconds; `on_wait` as for `logs`."""
    begun, pause = time.monotonic(), _POLL_SECONDS
    poll = TolerantPoll()
    while True:
        now = poll.ask(partial(status, record, settings))
        if now is None:
            time.sleep(_LONGEST_POLL_SECONDS)
            continue
        waited = time.monotonic() - begun
        if not now.state.may_change or (timeout is not None and waited >= timeout):
            return now
        if on_wait and now.state in _WAITING:
            on_wait(now, waited)
        pause = min(pause * _SLOWER, _LONGEST_POLL_SECONDS)
        time.sleep(pause if timeout is None else min(pause, max(0.0, timeout - waited)))
        record = _read_again(record, settings)


def cancel(record: JobRecord, settings: Settings, grace: float | None = None) -> None:
    """Cancel a job, also one that is still being submitted; if the job is lost, end the processes that are left.

    Its processes get SIGTERM, and after `grace` seconds (by default the backend's own limit) SIGKILL.
    """
    now = status(record, settings).state
    if now.is_final and now is not State.LOST:
        return
    if record.damage and not record.handle:
        text = f"cannot find out where {record.id} runs: {record.damage}"
        raise UsageError(text, "cancel it with the tools of its platform")
    records = JobRecords(settings)
    records.ask_cancel(record)
    record = with_handle(records.read(record.id) or record, settings)
    if record.handle:
        open_backend(record.backend, settings).cancel(JobHandle.parse(record.handle), grace)


def delete(record: JobRecord, settings: Settings, *, force: bool = False) -> bool:
    """Remove everything this machine and the backend keep of a job; return False if another process has removed it.

    Raises UsageError while the job runs.

    With `force`, also remove a job whose state is unknown: its record is damaged, another machine runs it, or its
    backend does not answer. A job that runs on this machine is never removed.
    """
    records = JobRecords(settings)
    try:
        now = status(record, settings)
    except JobNotFoundError:
        if records.read(record.id) is None:
            raise
        return records.remove(record)  # the engine has forgotten it
    except BackendError as error:
        if not force:
            raise
        now = JobStatus(State.UNKNOWN, "", error.message)
    known = with_handle(record, settings) if now.state is not State.UNKNOWN else record
    is_elsewhere = bool(now.details.get("host"))
    if now.state is State.UNKNOWN or is_elsewhere:
        if not force:
            text = f"{record.id} is {now.state.value}: {now.message}"
            raise UsageError(text, f"delete it anyway: jobsubmit delete --force {record.id}")
    elif not now.state.is_final:
        raise UsageError(
            f"job {record.id} is {now.state.value} and cannot be deleted", f"end it first: jobsubmit cancel {record.id}"
        )
    if known.handle and (now.state is not State.UNKNOWN or known.backend == "local") and not is_elsewhere:
        open_backend(known.backend, settings).delete(JobHandle.parse(known.handle))
    return records.remove(record)
