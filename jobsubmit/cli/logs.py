"""The command that shows the output of nodes and ranks: logs."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TextIO

import typer

from jobsubmit.backends.models import JobStatus, LogLine, LogQuery, Stream
from jobsubmit.cli import console, formatting
from jobsubmit.cli.console import out
from jobsubmit.cli.log_folding import lines_to_show
from jobsubmit.cli.options import JobName, Since, moment, rank_numbers
from jobsubmit.cli.training import with_footer
from jobsubmit.common.durations import time_text
from jobsubmit.config import Settings
from jobsubmit.errors import INTERRUPTED, UsageError
from jobsubmit.jobs import monitor as following
from jobsubmit.jobs.records import JobRecord, find_job

_SILENT_SECONDS = 60.0
_PENDING_SECONDS = 30.0


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Start with the last N lines.")] = None,
    since: Since = None,
    node: Annotated[
        int | None, typer.Option("--node", metavar="N", min=0, help="Only this node and its ranks.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="R", min=0, help="Only this rank.", autocompletion=rank_numbers)
    ] = None,
    stream: Annotated[Stream | None, typer.Option("--stream", help="Only lines of this stream.")] = None,
    grep: Annotated[str | None, typer.Option("--grep", metavar="REGEX", help="Only lines that match.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Start each line with its time.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Pass all control characters to the terminal, not only colours.")
    ] = False,
    download: Annotated[
        Path | None,
        typer.Option(
            "--download", metavar="DIR", help="Write to files in DIR instead: one per rank or node, and stream."
        ),
    ] = None,
) -> None:
    """Print the output of nodes and ranks in chronological order.

    Each line starts with its node or rank; with -o json, each is a document.
    The time of a line is when jobsubmit saw it in the log file, to a tenth of
    a second. A progress bar that redraws its line is shown once a second. At
    least the newest 512 MB of each stream are kept; a line marks where older
    output is missing.
    """
    record, settings = find_job(job)
    if node is not None and node >= record.nodes and not record.damage:
        last = f"{record.id} has only node 0" if record.nodes == 1 else f"{record.id} has nodes 0 to {record.nodes - 1}"
        raise UsageError(f"--node {node}: {last}")
    query = LogQuery(node, rank, stream, moment("--since", since), tail, _pattern(grep))
    lines = 0
    try:
        with ExitStack() as open_files:
            show = _writer(download, open_files, timestamps) if download else _printer(timestamps, raw=raw)
            found = following.logs(record, settings, query, follow=follow, on_wait=say_why_it_waits(record))
            found = say_when_silent(found, record) if follow else found
            if follow and not (out.json or download):
                found = with_footer(found, sys.stdout, record, settings)
            is_exact = raw or out.json or download or not (follow or sys.stdout.isatty())
            for line in found if is_exact else lines_to_show(found, folded=follow):
                show(line)
                lines += 1
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if download:
        out.talk(f"wrote {console.counted(lines, 'line')} to {download}")
    elif not lines:
        _explain_silence(record, settings, query)


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(grep) if grep is not None else None
    except re.error as error:
        raise UsageError(
            f"--grep {grep!r} is not a regular expression: {error}", "put a \\ before . * + ? ( ) [ ]"
        ) from None


def _explain_silence(record: JobRecord, settings: Settings, query: LogQuery) -> None:
    hint = f"run `jobsubmit logs {record.id}` to see all lines"
    has_ended = following.status(record, settings).state.is_final
    ranks = {event["rank"] for event in following.events(record, settings) if event["event"] == "rank_start"}
    if query == LogQuery():
        out.talk("no output")
    elif ranks and query.rank is not None and query.rank > max(ranks) and has_ended:
        raise UsageError(f"--rank {query.rank}: {record.id} has ranks 0 to {max(ranks)}", hint)
    elif query.rank is not None and query == LogQuery(rank=query.rank):
        out.talk(f"no output of rank {query.rank}: it wrote nothing, or shares the log of its node; {hint}")
    else:
        out.talk(f"no line matches; {hint}")


def line_time(seconds: float) -> str:
    """Return when a line was written, to the millisecond."""
    return time_text(seconds, "milliseconds")


def _printer(timestamps: bool, *, raw: bool) -> Callable[[LogLine], None]:
    def show_json(line: LogLine) -> None:
        document = {"node": line.node, "rank": line.rank, "stream": line.stream, "time": line_time(line.time)}
        out.data(json.dumps({**document, "text": line.text}, ensure_ascii=False))

    colour = out.has_colour(sys.stdout)

    raw = raw or not sys.stdout.isatty()

    def show_text(line: LogLine) -> None:
        moment_text = f"{line_time(line.time)} " if timestamps else ""
        out.coloured_data(moment_text + formatting.log_text(line, colour=colour, raw=raw))

    return show_json if out.json else show_text


def _writer(folder: Path, open_files: ExitStack, timestamps: bool) -> Callable[[LogLine], None]:
    files: dict[str, TextIO] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--download {folder}: {error.strerror}", "choose a directory that you can write to"
        ) from error

    def write(line: LogLine) -> None:
        name = f"node-{line.node}" if line.rank is None else f"rank-{line.rank}"
        name += f".{line.stream}.log"
        if name not in files:
            files[name] = open_files.enter_context((folder / name).open("w", encoding="utf-8", errors="replace"))
        files[name].write((f"{line_time(line.time)} " if timestamps else "") + line.text + "\n")

    return write


def say_when_silent(lines: Iterable[LogLine], record: JobRecord, seconds: float = _SILENT_SECONDS) -> Iterator[LogLine]:
    """Yield the lines of a job that runs; report once per silence that there was no output for a while."""
    last, was_said, has_ended = time.monotonic(), False, threading.Event()

    def watch() -> None:
        nonlocal was_said
        while not has_ended.wait(seconds / 60):
            if not was_said and time.monotonic() - last >= seconds:
                was_said = True
                hint = "how hangs are detected: jobsubmit help hang_after"
                out.talk(f"no output for {seconds:.0f} s: see jobsubmit status {record.id}; {hint}")

    threading.Thread(target=watch, daemon=True).start()
    try:
        for line in lines:
            last, was_said = time.monotonic(), False
            yield line
    finally:
        has_ended.set()


def say_why_it_waits(record: JobRecord) -> Callable[[JobStatus, float], None]:
    """Return a function that reports why a job waits, once per reason and only after a while."""
    shown: list[str] = []

    def on_wait(status: JobStatus, seconds: float) -> None:
        reason = status.message or status.reason or "the backend gives no reason"
        if seconds >= _PENDING_SECONDS and reason not in shown:
            shown.append(reason)
            out.talk(f"{record.id} has been {status.state.value} for {seconds:.0f} s: {reason}")

    return on_wait
