"""The Python interface: the commands as functions. The package `jobsubmit` exports all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery
from jobsubmit.config import load_settings
from jobsubmit.jobs import monitor, submit
from jobsubmit.jobs.prepare import Demands, Prepared, prepare as prepare_job
from jobsubmit.jobs.records import JobRecord, JobRecords, find_job
from jobsubmit.jobs.rerun import prepare_rerun
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.script import Script, render
from jobsubmit.report.model import Report
from jobsubmit.report.report import report
from jobsubmit.spec.loader import LoadedSpec, Override, load as load_file, load_mapping


def load(job: str | Path | Mapping[str, Any], assignments: Sequence[str] = ()) -> LoadedSpec:
    """Read a job file, or a mapping of its fields; `assignments` are like `--set field=value`. Raises SpecError.

    job = jobsubmit.load("job.yaml", ["resources.nodes=4"])
    """
    overrides = [Override.from_assignment(text) for text in assignments]
    return load_mapping(job, overrides) if isinstance(job, Mapping) else load_file(job, overrides)


def prepare(job: LoadedSpec, job_id: str | None = None) -> Prepared:
    """Prepare and check a job, as `create --dry-run` does; change nothing. Raises CheckError and BundleError.

    for finding in jobsubmit.prepare(job).findings:
        print(finding.level, finding.text)
    """
    return prepare_job(job, load_settings(), Demands(job_id))


def render_script(job: LoadedSpec) -> Script:
    """Return the start script, byte for byte as every node runs it. Raises SpecError for an invalid template.

    print(jobsubmit.render_script(job).text)
    """
    return render(build_plan(job.spec, load_settings()))


def create(job: LoadedSpec, job_id: str | None = None) -> JobHandle:
    """Upload the code, submit the job and return its handle at once. Raises any JobSubmitError.

    handle = jobsubmit.create(jobsubmit.load("job.yaml"))
    """
    return submit.submit(prepare(job, job_id), load_settings()).handle


def status(job: JobHandle | str) -> JobStatus:
    """Return the status of a job. Raises JobNotFoundError, and BackendError if the backend cannot be reached.

    is_running = jobsubmit.status("resnet").state is jobsubmit.State.RUNNING
    """
    return monitor.status(*find_job(str(job)))


def logs(job: JobHandle | str, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
    """Yield the lines of a job that match a query; with `follow`, until it ends. Raises JobNotFoundError.

    for line in jobsubmit.logs("resnet", jobsubmit.LogQuery(rank=0), follow=True):
        print(line.text)
    """
    return monitor.logs(*find_job(str(job)), query, follow=follow)


def events(job: JobHandle | str) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a job: each has `t`, in seconds since the epoch, and `event`, its kind.

    starts = [event for event in jobsubmit.events("resnet") if event["event"] == "rank_start"]
    """
    return monitor.events(*find_job(str(job)))


def wait(job: JobHandle | str, timeout: float | None = None) -> JobStatus:
    """Wait for a job to end, at most `timeout` seconds, and return its status. Raises JobNotFoundError.

    failure = jobsubmit.wait(handle).failure
    """
    return monitor.wait(*find_job(str(job)), timeout)


def report_of(job: JobHandle | str) -> Report:
    """Return where the time of a job went: its phases and its training steps. Raises JobNotFoundError.

    for phase in jobsubmit.report_of("resnet").phases:
        print(phase.name, phase.spans)
    """
    return report(*find_job(str(job)))


def cancel(job: JobHandle | str, grace: float | None = None) -> None:
    """Cancel a job, with `grace` seconds to save; do nothing if it has ended. Raises JobNotFoundError.

    jobsubmit.cancel("resnet", grace=30)
    """
    monitor.cancel(*find_job(str(job)), grace)


def rerun(job: JobHandle | str, assignments: Sequence[str] = (), *, resume: bool = False) -> JobHandle:
    """Submit an earlier job again, changed only by the assignments; with `resume`, from its last checkpoint.

    handle = jobsubmit.rerun("resnet", ["hyperparameters.lr=0.01"], resume=True)

    Raises any JobSubmitError.
    """
    changes = [Override.from_assignment(text) for text in assignments]
    record, settings = find_job(str(job))
    return submit.submit(prepare_rerun(record, settings, changes, resume=resume), settings).handle


def delete(job: JobHandle | str) -> None:
    """Delete the logs and the record of a job that has ended. Raises UsageError while it runs, and JobNotFoundError.

    jobsubmit.delete("resnet")
    """
    monitor.delete(*find_job(str(job)))


def list_jobs() -> list[JobRecord]:
    """Return the jobs submitted from this machine, the newest first.

    newest = jobsubmit.list_jobs()[0]
    """
    return JobRecords(load_settings()).all()
