"""The commands that list and delete jobs: list, delete, prune."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, TypeAlias

import typer

from jobsubmit.backends.models import State
from jobsubmit.cli.console import columns, counted, out, readable, table
from jobsubmit.cli.options import JobNames, Since, moment
from jobsubmit.cli.training import training_document
from jobsubmit.common.durations import age_text, time_text
from jobsubmit.common.sizes import bytes_text
from jobsubmit.config import Settings, load_settings
from jobsubmit.errors import INTERRUPTED, BackendError, JobNotFoundError, UsageError
from jobsubmit.jobs import monitor as following
from jobsubmit.jobs.listing import Filter, Summary, summarize_jobs
from jobsubmit.jobs.progress import NOTHING_SHOWN, TrainingState, read_trainings
from jobsubmit.jobs.records import JobRecords
from jobsubmit.report.training_text import left_cell, loss_cell, step_cell

_SHOWN = 50
_WATCH_SECONDS = 1.0
_COLUMNS = ("id", "state", "step", ">loss", ">ETA", "mode", "nodes", "backend")
_DROPPED = ("ETA", "loss", "step", "nodes", "mode", "backend")  # in this order, on a narrow terminal
_NARROWEST = 12  # for ids
_GAP = 2  # between two columns of a table
States: TypeAlias = Annotated[
    list[State] | None,
    typer.Option("--state", metavar="STATE", case_sensitive=False, help="Only jobs in this state. May be repeated."),
]


def list_(
    state: States = None,
    since: Since = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="PATTERN", help="Only jobs whose name or id matches, e.g. 'ddp-*'.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "-n", metavar="N", min=0, help="Show at most N jobs; 0 shows all.", show_default="50; with -o json all"
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
) -> None:
    """List the jobs submitted from this machine, newest first.

    Shows the step, the loss and the time left of each job, as far as its output
    shows them.
    """
    settings = load_settings()
    chosen = Filter(tuple(state or ()), moment("--since", since), name=name)
    limit = number if number is not None else 0 if out.json else _SHOWN
    if watch and (out.json or not sys.stdout.isatty()):
        raise UsageError(
            "--watch needs a terminal and text output", "remove --watch; in programs, use `jobsubmit list -o json`"
        )
    if watch:
        _watch(settings, chosen, limit)
        return
    jobs = summarize_jobs(settings, chosen)
    shown = jobs[:limit] if limit else jobs
    if out.json:
        trainings = read_trainings(shown, settings)
        out.document([_document(job, trainings.get(job.id)) for job in shown])
        return
    if not jobs and chosen == Filter():
        out.talk("no jobs yet: jobsubmit init writes a job file, jobsubmit create submits it")
    elif not jobs:
        out.talk("no job matches; jobsubmit list -n 0 shows all")
    elif sys.stdout.isatty():
        out.stdout.print(_table(shown, settings))
    else:
        out.data(_plain(shown, settings))
    if len(shown) < len(jobs):
        out.talk(f"{len(jobs) - len(shown):,} more; jobsubmit list -n 0 shows all")


def _document(job: Summary, training: TrainingState | None) -> dict[str, Any]:
    times = {"created": time_text(job.created), "ended": None if job.ended is None else time_text(job.ended)}
    return {**job._asdict(), **times, "training": training_document(training)}


def _rows(jobs: list[Summary], settings: Settings, whens: list[str]) -> list[tuple[str, ...]]:
    trainings, now = read_trainings(jobs, settings), time.time()
    rows: list[tuple[str, ...]] = []
    for job, when in zip(jobs, whens, strict=True):
        training = trainings.get(job.id, NOTHING_SHOWN)
        left = "" if State(job.state).is_final else left_cell(training, now)
        state = job.state + (f" ({job.reason})" if job.reason else "")
        cells = (step_cell(training), loss_cell(training), left)
        rows.append((job.id, state, *cells, job.mode, str(job.nodes), job.backend, when))
    return rows


def _plain(jobs: list[Summary], settings: Settings) -> str:
    """Return the table for a pipe."""
    rows = _rows(jobs, settings, [time_text(job.created) for job in jobs])
    return columns([(*_COLUMNS, "created"), *([cell or "-" for cell in row] for row in rows)])


def _table(jobs: list[Summary], settings: Settings) -> Any:
    """Return the table for a terminal; a narrow one has fewer columns, and ids that are too long have two lines."""
    from jobsubmit.cli.formatting import state_text

    now, shown = time.time(), readable(jobs)
    heads = [*_COLUMNS, ">age"]
    rows: list[list[Any]] = [
        list(row) for row in _rows(shown, settings, [age_text(now - job.created) for job in shown])
    ]
    for name in _DROPPED:
        if _width(heads, rows) > out.stdout.width:
            place = [head.lstrip(">") for head in heads].index(name)
            for row in (heads, *rows):
                del row[place]
    rest = _width(heads[1:], [row[1:] for row in rows]) + _GAP
    for row, job in zip(rows, shown, strict=True):
        row[1] = state_text(job.state, job.reason)
    found = table(heads, rows)
    for column in found.columns[1:]:
        column.no_wrap = True
    found.columns[0].overflow = "fold"
    found.columns[0].max_width = max(_NARROWEST, out.stdout.width - rest)
    return found


def _width(heads: list[str], rows: list[list[Any]]) -> int:
    from rich.cells import cell_len

    longest = (max(map(cell_len, column)) for column in zip([head.lstrip(">") for head in heads], *rows, strict=True))
    return sum(longest) + _GAP * (len(heads) - 1)


def _watch(settings: Settings, chosen: Filter, limit: int) -> None:
    from rich.live import Live

    try:
        with Live(console=out.stdout, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
            while True:
                jobs = summarize_jobs(settings, chosen)
                live.update(_table(jobs[:limit] if limit else jobs, settings), refresh=True)
                time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def delete(
    jobs: JobNames,
    force: Annotated[
        bool, typer.Option("--force", help="Delete a job even if its record is damaged or its state cannot be read.")
    ] = False,
) -> None:
    """Delete jobs that have ended, with their logs and records.

    Deletes the job directory on this machine, and what the backend keeps of the
    job: on ModelArts the training job, on Kubernetes the Volcano job and its
    logs in the store, on Slurm its folder in the shared directory, on SSH hosts
    its folder there. Keeps the code in the store, and the outputs and
    checkpoints of the jobs.

    --force never deletes a job that runs on this machine. If the platform does
    not answer, it deletes only the files on this machine: the job may still run.
    """
    settings = load_settings()
    records = [JobRecords(settings).find(job) for job in jobs]
    for record in records:
        following.delete(record, settings, force=force)
        out.talk(f"deleted {record.id}")
    if out.json:
        out.document([record.id for record in records])


def _is_deleted(job_id: str, settings: Settings) -> bool:
    """Delete a job that has ended; return whether this process deleted it."""
    record = JobRecords(settings).read(job_id)
    if record is None or record.damage:
        return False
    try:
        return following.delete(record, settings)
    except JobNotFoundError:
        return False
    except BackendError as error:
        out.talk(f"kept {job_id}: {error.message}")
        return False


def prune(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Only jobs older than 30d, 12h, …, or a date like 2026-11-21."
        ),
    ] = None,
    state: States = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which jobs would be deleted.")] = False,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="HOST,HOST", help="Empty the cache on these SSH hosts."),
    ] = None,
    workdir: Annotated[
        str | None,
        typer.Option("--workdir", metavar="FOLDER", help="With --hosts: their `workdir`, if not ~/.jobsubmit."),
    ] = None,
) -> None:
    """Delete old jobs that have ended, or empty the cache on SSH hosts.

    Needs one of two options. --older-than deletes the jobs that were
    submitted before that time. --hosts deletes no job. It removes the code,
    the inputs and the agent that jobsubmit keeps on these hosts for later
    jobs.
    """
    if (hosts is None) == (older_than is None):
        raise UsageError("prune needs either --older-than or --hosts", "e.g. jobsubmit prune --older-than 30d")
    if hosts is not None:
        _empty_caches(hosts.split(","), workdir)
        return
    assert older_than is not None
    settings = load_settings()
    chosen = Filter(tuple(state or ()), before=moment("--older-than", older_than))
    jobs = summarize_jobs(settings, chosen)
    removed = [job.id for job in jobs if State(job.state).is_final and (dry_run or _is_deleted(job.id, settings))]
    for job in jobs:
        if job.state == State.UNKNOWN:
            out.talk(f"kept {job.id}, its state is unknown ({job.message}): jobsubmit delete --force {job.id}")
    if out.json:
        out.document(removed)
        return
    for job_id in removed:
        out.data(job_id)
    number = counted(len(removed), "job")
    out.talk(f"would delete {number}" if dry_run else f"deleted {number}")


def _empty_caches(hosts: list[str], workdir: str | None) -> None:
    from jobsubmit.backends.ssh.cache import empty_caches  # other commands do not need it

    failed = None
    for host, freed in empty_caches(hosts, workdir).items():
        if isinstance(freed, BackendError):
            failed = freed
            out.talk(f"kept: {freed.message}")
        else:
            out.talk(f"{host}: freed {bytes_text(freed)}")
    if failed is not None:
        raise failed
    if out.json:
        out.document(hosts)
