"""The Python interface: the command line's verbs as functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery
from jobsubmit.config import load_settings
from jobsubmit.jobs import monitor as following
from jobsubmit.jobs import prepare as preparation
from jobsubmit.jobs import submit
from jobsubmit.jobs.prepare import Demands, Prepared
from jobsubmit.jobs.records import JobRecord, JobRecords
from jobsubmit.jobs.rerun import prepare_again
from jobsubmit.plan import launch_plan as planning
from jobsubmit.plan.script import Script, render
from jobsubmit.report import report as reporting
from jobsubmit.report.report import Report
from jobsubmit.spec.loader import LoadedSpec, Override, load_mapping
from jobsubmit.spec.loader import load as load_file

__all__ = [
    "LogQuery",
    "cancel",
    "create",
    "delete",
    "list_jobs",
    "load",
    "logs",
    "prepare",
    "render_script",
    "report_of",
    "rerun",
    "status",
    "wait",
]


def load(job: str | Path | Mapping[str, Any], assignments: Sequence[str] = ()) -> LoadedSpec:
    """Read a job file, or a mapping of its fields; `assignments` are like `--set field=value`. Raises SpecError."""
    overrides = [Override.from_assignment(text) for text in assignments]
    if isinstance(job, Mapping):
        return load_mapping(job, overrides)
    return load_file(job, overrides)


def prepare(job: LoadedSpec, job_id: str | None = None) -> Prepared:
    """Decide everything about a job, as `create --dry-run` does; touch nothing. Raises CheckError, BundleError."""
    return preparation.prepare(job, load_settings(), Demands(job_id))


def render_script(job: LoadedSpec) -> Script:
    """Return the start script, byte for byte as every node runs it."""
    return render(planning.plan(job.spec, load_settings()))


def create(job: LoadedSpec, job_id: str | None = None) -> JobHandle:
    """Upload the code, submit the job and return its handle at once. Raises any JobSubmitError."""
    return submit.submit(prepare(job, job_id), load_settings()).handle


def status(job: JobHandle | str) -> JobStatus:
    """Return how a job is: by handle, id or name. Raises JobNotFoundError."""
    return following.status(_record(job), load_settings())


def logs(job: JobHandle | str, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
    """Yield the lines of a job that a query chooses; with `follow` until it has ended. Raises JobNotFoundError."""
    return following.logs(_record(job), load_settings(), query, follow=follow)


def wait(job: JobHandle | str, timeout: float | None = None) -> JobStatus:
    """Return the status once it is final, or as it is after `timeout` seconds. Raises JobNotFoundError."""
    return following.wait(_record(job), load_settings(), timeout)


def report_of(job: JobHandle | str) -> Report:
    """Return what became of a job's time: its phases, and what its steps spent on what. Raises JobNotFoundError."""
    return reporting.report(_record(job), load_settings())


def cancel(job: JobHandle | str, grace: float | None = None) -> None:
    """Ask a job to end within `grace` seconds; on one that has ended this does nothing. Raises JobNotFoundError."""
    following.cancel(_record(job), load_settings(), grace)


def rerun(job: JobHandle | str, assignments: Sequence[str] = (), *, resume: bool = False) -> JobHandle:
    """Submit an earlier job again, as it was but for the assignments; with `resume` from its last checkpoint.

    Raises any JobSubmitError.
    """
    changes = [Override.from_assignment(text) for text in assignments]
    settings = load_settings()
    return submit.submit(prepare_again(_record(job), settings, changes, resume=resume), settings).handle


def delete(job: JobHandle | str) -> None:
    """Remove what is kept of a job that has ended. Raises UsageError while it runs, and JobNotFoundError."""
    following.delete(_record(job), load_settings())


def list_jobs() -> list[JobRecord]:
    """Return the jobs submitted from this machine, the newest first."""
    return JobRecords(load_settings()).all()


def _record(job: JobHandle | str) -> JobRecord:
    return JobRecords(load_settings()).find(str(job))
