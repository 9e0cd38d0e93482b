"""The options that several commands share."""

from __future__ import annotations

import math
import os
import time
from typing import Annotated, Literal, TypeAlias

import typer

from jobsubmit.cli.console import out
from jobsubmit.common.durations import parse_duration, parse_time
from jobsubmit.errors import UsageError

OutputFormat: TypeAlias = Literal["text", "json"]


def _set_format(value: OutputFormat) -> OutputFormat:
    out.json = value == "json"
    return value


def _set_debug(value: bool) -> bool:
    out.debug = out.debug or value
    return value


Format: TypeAlias = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", callback=_set_format, is_eager=True, help="text for people, json for programs."),
]
Debug: TypeAlias = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, is_eager=True, help="Show the traceback of an error.")
]


def job_names(incomplete: str) -> list[str]:
    """Return the names and ids of all jobs for shell completion, the newest first."""
    from jobsubmit.config import load_settings
    from jobsubmit.jobs.records import JobRecords

    records = JobRecords(load_settings()).all()
    words = dict.fromkeys([*(record.name for record in records), *(record.id for record in records)])
    return [word for word in words if word.startswith(incomplete)]


def _running_jobs(incomplete: str) -> list[str]:
    """Return the names and ids of the jobs that have not ended, for shell completion."""
    from jobsubmit.config import load_settings
    from jobsubmit.jobs.listing import Filter, summarize_jobs

    over = ("SUCCEEDED", "FAILED", "CANCELLED", "LOST")
    jobs = [job for job in summarize_jobs(load_settings(), Filter()) if job.state not in over]
    words = dict.fromkeys([*(job.name for job in jobs), *(job.id for job in jobs)])
    return [word for word in words if word.startswith(incomplete)]


def backend_names(incomplete: str) -> list[str]:
    """Return the kinds of backends for shell completion."""
    from jobsubmit.spec.backend_registry import backend_kinds

    return [kind for kind in backend_kinds() if kind.startswith(incomplete)]


def sample_names(incomplete: str) -> list[str]:
    """Return the names of the samples for shell completion."""
    from jobsubmit.scaffold.samples import list_samples

    return [sample.name for sample in list_samples() if sample.name.startswith(incomplete)]


def rank_numbers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ranks of the job on the command line, for shell completion."""
    from jobsubmit.jobs import monitor
    from jobsubmit.jobs.records import find_job

    try:
        typed = [word for word in os.environ.get("COMP_WORDS", "").split()[2:] if not word.startswith("-")]
        record, settings = find_job(str(ctx.params.get("job") or typed[0]))
        ranks = {event["rank"] for event in monitor.events(record, settings) if event["event"] == "rank_start"}
    except Exception:  # a shell that completes shows nothing
        return []
    return [str(rank) for rank in sorted(ranks) if str(rank).startswith(incomplete)]


RunningJob: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Handle, id or name (the newest job of that name).", metavar="JOB", autocompletion=_running_jobs
    ),
]
JobName: TypeAlias = Annotated[
    str,
    typer.Argument(help="Handle, id or name (the newest job of that name).", metavar="JOB", autocompletion=job_names),
]
JobNames: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        help="Handles, ids or names (the newest job of that name).", metavar="JOB...", autocompletion=job_names
    ),
]
Propagate: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--propagate-exit-code", help="If the job fails, exit with the code of the process that failed first."
    ),
]
Since: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only what is newer than 90s, 30m, 12h or 2d, or than a time like 2026-11-21T12:00.",
    ),
]


def moment(option: str, text: str | None) -> float | None:
    """Return a time in seconds since the epoch, given as a time or as a duration ago; raise UsageError."""
    if text is None:
        return None
    ago = parse_duration(text)
    if ago is not None:
        return time.time() - ago
    found = parse_time(text)
    if found is None:
        hint = "give an age (90s, 30m, 12h or 2d), or a time like 2026-11-21T12:00"
        raise UsageError(f"{option} {text}: is not a time", hint)
    return found


def seconds(option: str, text: str | None) -> float | None:
    """Return a duration in seconds, given as a number or as 90s, 30m, 12h, 2d; raise UsageError."""
    if text is None:
        return None
    whole = parse_duration(text)
    try:
        number = float(text) if whole is None else float(whole)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise UsageError(f"{option} {text}: is not a duration", "give a number of seconds, or 90s, 30m, 12h, 2d")
    return number
