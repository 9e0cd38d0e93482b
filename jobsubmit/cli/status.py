"""The commands about one job: status, describe, events, wait, cancel."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import Annotated

import typer

from jobsubmit.agent.job_directory import SCRIPT_NAME
from jobsubmit.backends.models import JobStatus
from jobsubmit.cli import console, formatting
from jobsubmit.cli.console import out
from jobsubmit.cli.log_folding import lines_to_show
from jobsubmit.cli.logs import line_time, say_when_silent, say_why_it_waits
from jobsubmit.cli.options import JobName, Propagate, RunningJob, seconds
from jobsubmit.cli.training import training_document, with_footer
from jobsubmit.config import Settings
from jobsubmit.errors import INTERRUPTED, NOT_FINISHED
from jobsubmit.jobs import monitor as following
from jobsubmit.jobs.progress import TrainingState, training_of
from jobsubmit.jobs.records import JobRecord, find_job
from jobsubmit.report.training_text import training_text

_CANCEL_SECONDS = 30.0
_SECOND_CTRL_C_SECONDS = 2.0


def follow_to_the_end(record: JobRecord, settings: Settings, *, propagate: bool) -> None:
    """Show a job's output on stderr until it ends, then its report, and exit with the code for its state."""
    colour = out.has_colour(sys.stderr)
    try:
        lines = following.logs(record, settings, follow=True, on_wait=say_why_it_waits(record))
        lines = with_footer(say_when_silent(lines, record), sys.stderr, record, settings)
        for line in lines_to_show(lines, folded=True):
            out.line(formatting.log_text(line, colour=colour, raw=not sys.stderr.isatty()))
        status = following.wait(record, settings)
    except KeyboardInterrupt:
        status = _detach_or_cancel(record, settings)
    formatting.show_report(sys.stderr, record, status)
    if out.json:
        out.document(formatting.job_document(record, status))
    raise typer.Exit(formatting.exit_code(status, propagate=propagate))


def _detach_or_cancel(record: JobRecord, settings: Settings) -> JobStatus:
    """Detach from the job; if Ctrl-C comes a second time, cancel the job and return its final status."""
    out.talk(
        f"\ndetaching: the job continues. Follow it again: jobsubmit logs -f {record.id} · "
        f"press Ctrl-C again within {_SECOND_CTRL_C_SECONDS:.0f} s to cancel the job"
    )
    try:
        time.sleep(_SECOND_CTRL_C_SECONDS)
    except KeyboardInterrupt:
        following.cancel(record, settings)
        out.talk(f"cancelling {record.id}")
        return following.wait(record, settings)
    if out.json:
        out.document(formatting.job_document(record, following.status(record, settings)))
    raise typer.Exit(INTERRUPTED)


def status(job: JobName) -> None:
    """Show the state of a job, and which process failed first.

    Shows the step, the loss and the time left of the training, as far as its
    output shows them, and how long each phase took. If the job failed, also
    shows which node and rank failed first, and the last lines of that process.
    """
    record, settings = find_job(job)
    now = following.status(record, settings)
    training = training_of(record, now.state, settings)
    if out.json:
        out.document({**formatting.job_document(record, now), "training": training_document(training)})
        return
    _show_status(record, now, training, settings)


def _show_status(record: JobRecord, now: JobStatus, training: TrainingState, settings: Settings) -> None:
    from jobsubmit.report.report import read_phases

    phases, directory = console.readable(read_phases(record, now, settings)), str(settings.job_dir(record.id))
    record, now = console.readable(record), console.readable(now)
    formatting.show_report(sys.stdout, record, now)
    progress = training_text(training, None if now.state.is_final else time.time())
    facts = {"training": progress} if progress else {}
    facts |= {
        "handle": record.handle or "none",
        "mode": f"{record.mode}, {console.counted(record.nodes, 'node')}",
        "created": record.created_at,
        "code": record.code,
        "folder": directory,
    }
    for name, fact in facts.items():
        out.styled(sys.stdout, f"{name:<9} {fact}")
    out.table(("phase", ">began after", ">took"), formatting.phase_rows(phases, is_final=now.state.is_final))


def describe(job: JobName) -> None:
    """Show everything that is known about a job.

    Shows its state, the process that failed first, the location of its code,
    script and job directory, its nodes and ranks, every phase and restart, and
    the files of the job directory.
    """
    found_record, settings = find_job(job)
    record = console.readable(found_record)
    now = console.readable(following.status(record, settings))
    training = training_of(found_record, now.state, settings)
    directory = settings.job_dir(record.id)
    found = [*directory.glob("*"), *directory.glob("logs/*"), *directory.glob("stacks/*")]
    files = console.readable(sorted(str(file.relative_to(directory)) for file in found if file.is_file()))
    starts = [event for event in following.events(record, settings) if event["event"] == "rank_start"]
    ranks = {event["rank"]: {"node": event["node"], "pid": event["pid"]} for event in starts}
    if out.json:
        own = {"directory": str(directory), "files": files, "ranks": ranks, "rerun_of": record.rerun_of or None}
        own["training"] = training_document(training)
        out.document({**formatting.job_document(record, now), **own})
        return
    _show_status(record, now, training, settings)
    facts = {
        "script": f"{directory / SCRIPT_NAME}, sha256 {record.script_sha256}",
        "digest": record.digest or "unknown: the code was already in the store",
        "rerun of": record.rerun_of,
        "port": now.details.get("port"),
        "last step": now.details.get("last_step"),
        "ckpt dir": now.details.get("checkpoint_dir"),
    }
    for name, fact in facts.items():
        if fact not in (None, ""):
            out.styled(sys.stdout, f"{name:<9} {fact}")
    for node, address in enumerate(now.details.get("addresses", ())):
        out.styled(sys.stdout, f"node {node:<4} {address}")
    for rank, process in sorted(ranks.items()):
        out.styled(sys.stdout, f"rank {rank:<4} node {process['node']}, pid {process['pid']}")
    out.styled(sys.stdout, "files     " + "\n          ".join(files))
    out.styled(
        sys.stdout, f"next: jobsubmit logs {record.id} · jobsubmit events {record.id} · jobsubmit rerun {record.id}"
    )


def events(job: JobName) -> None:
    """Print the events of a job with their times: phases, processes, failures, restarts.

    With -o json, prints one document per line.
    """
    record, settings = find_job(job)
    for event in following.events(record, settings):
        if out.json:
            out.data(json.dumps({**event, "t": line_time(event["t"])}, ensure_ascii=False))
        else:
            fields = {name: _plain(value) for name, value in event.items() if name not in ("t", "event")}
            shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in fields.items() if value)
            out.data(f"{line_time(event['t'])} {event['event']} {shown}".rstrip())


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def wait(
    job: JobName,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="SECONDS", help="Stop waiting after this time (exit code 101): seconds, or as 30m."
        ),
    ] = None,
    propagate: Propagate = False,
) -> None:
    """Wait until a job ends.

    Exit codes: 0 the job succeeded, 100 it failed, 103 it was cancelled, 101
    it has not finished in time, or its state is unknown.
    """
    record, settings = find_job(job)
    try:
        now = following.wait(record, settings, seconds("--timeout", timeout), on_wait=say_why_it_waits(record))
    except KeyboardInterrupt:
        out.talk(f"stopped waiting: {record.id} continues")
        raise typer.Exit(INTERRUPTED) from None
    if out.json:
        out.document(formatting.job_document(record, now))
    else:
        formatting.show_report(sys.stdout, record, now)
    raise typer.Exit(formatting.exit_code(now, propagate=propagate))


def cancel(
    job: RunningJob,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            help="Time to save, from SIGTERM to SIGKILL: seconds, or as 5m. Not on ModelArts; on Volcano 10 at most.",
            show_default="10",
        ),
    ] = None,
) -> None:
    """Cancel a job.

    Its processes get SIGTERM, time to save, then SIGKILL. Does nothing if the
    job has ended. A second call with a shorter --grace takes effect at once.

    Exit codes: 0 the job has ended, 101 it has not ended 30 s after the grace
    period.
    """
    record, settings = find_job(job)
    within = seconds("--grace", grace)
    before = following.status(record, settings)
    if not before.state.is_final:
        out.talk(f"cancelling {record.id}")
    following.cancel(record, settings, within)
    now = following.wait(record, settings, _CANCEL_SECONDS + (within or 0))
    if out.json:
        out.document(formatting.job_document(record, now))
    else:
        formatting.show_report(sys.stdout, record, now)
    if not now.state.is_final:
        raise typer.Exit(NOT_FINISHED)
