"""The options that several commands share."""

from __future__ import annotations

import math
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


def _known_jobs(incomplete: str) -> list[str]:
    """Return the names and ids that a shell may complete, the newest first."""
    from jobsubmit.config import load_settings
    from jobsubmit.jobs.records import JobRecords

    records = JobRecords(load_settings()).all()
    words = dict.fromkeys([*(record.name for record in records), *(record.id for record in records)])
    return [word for word in words if word.startswith(incomplete)]


JobName: TypeAlias = Annotated[
    str,
    typer.Argument(help="A job's handle, id or name (its newest job).", metavar="JOB", autocompletion=_known_jobs),
]
JobNames: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        help="Handles, ids or names (the newest job of a name).", metavar="JOB...", autocompletion=_known_jobs
    ),
]
Propagate: TypeAlias = Annotated[
    bool, typer.Option("--propagate-exit-code", help="If the job fails, exit as its first failing process did.")
]
Since: TypeAlias = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="E.g. 90s, 30m, 12h, 2d ago, or a time like 2026-11-21T12:00."),
]


def moment(option: str, text: str | None) -> float | None:
    """Return a time, written as such or as how long ago it was, in seconds since the epoch; raise UsageError."""
    if text is None:
        return None
    ago = parse_duration(text)
    if ago is not None:
        return time.time() - ago
    found = parse_time(text)
    if found is None:
        hint = "write 90s, 30m, 12h or 2d for how long ago, or a time like 2026-11-21T12:00"
        raise UsageError(f"{option} {text}: is no time", hint)
    return found


def seconds(option: str, text: str | None) -> float | None:
    """Return a duration in seconds, written as a number of them or as 90s, 30m, 12h, 2d; raise UsageError."""
    if text is None:
        return None
    whole = parse_duration(text)
    try:
        number = float(text) if whole is None else float(whole)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise UsageError(f"{option} {text}: is no duration", "write a number of seconds, or 90s, 30m, 12h, 2d")
    return number
