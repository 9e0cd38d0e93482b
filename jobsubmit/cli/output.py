"""Results → terminal or JSON: data on stdout, talk on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from jobsubmit import upload
from jobsubmit.backends import JobStatus, LogLine, State
from jobsubmit.errors import JOB_CANCELLED, JOB_FAILED, NOT_FINISHED, JobSubmitError
from jobsubmit.jobs import JobRecord

_STATE_STYLES = {
    State.SUCCEEDED: "bold green",
    State.FAILED: "bold red",
    State.LOST: "bold red",
    State.CANCELLED: "bold yellow",
}
_PIPE_WIDTH = 1000
_RANK_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


class Output:
    """Hold how this run of the command line shows things; set by the options -o and --debug."""

    def __init__(self) -> None:
        self.json = False
        self.debug = False
        self._stderr: Console | None = None
        self._stdout: Console | None = None

    @property
    def stderr(self) -> Console:
        """Return the console for talk."""
        self._stderr = self._stderr or Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        return self._stderr

    @property
    def stdout(self) -> Console:
        """Return the console for tables and highlighted text; plain data is written with `data`."""
        # A pipe has no width: a table that is cut off there has lost data.
        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        self._stdout = self._stdout or Console(highlight=False, markup=False, soft_wrap=True, width=width)
        return self._stdout

    def data(self, text: str) -> None:
        """Write a line of data, at once and as it is."""
        sys.stdout.buffer.write((text + "\n").encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()

    def document(self, value: Any) -> None:
        """Write one JSON document."""
        self.data(json.dumps(value, ensure_ascii=False, indent=2))

    def talk(self, text: str, style: str = "") -> None:
        """Say something to the person."""
        self.stderr.print(Text(text, style=style))

    def script(self, text: str) -> None:
        """Write shell text: highlighted on a terminal, byte for byte elsewhere."""
        if sys.stdout.isatty():
            self.stdout.print(Syntax(text, "bash", background_color="default", theme="ansi_dark"), soft_wrap=True)
        else:
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()


out = Output()


def show_error(error: JobSubmitError) -> None:
    """Show an error once for people, and with -o json once for programs."""
    out.talk(f"error: {error.message}", "red")
    if error.hint:
        out.talk(f"  hint: {error.hint}")
    if out.json:
        out.document({"code": error.code, "message": error.message, "hint": error.hint, "where": error.where})


@contextmanager
def upload_progress(total: int) -> Iterator[upload.Progress]:
    """Show a bar on a terminal while code is packed and sent; `total` in bytes."""
    columns = (
        TextColumn("uploading code"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out.stderr, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("upload", total=total)
        yield lambda size: bar.advance(task, size)


def log_prefix(line: LogLine) -> str:
    """Return who says a line: a rank, or the node around its ranks."""
    return f"[node {line.node}]" if line.rank is None else f"[rank {line.rank}]"


def log_text(line: LogLine) -> Text:
    """Return a line with its prefix in the colour of its rank."""
    colour = "bright_black" if line.rank is None else _RANK_COLOURS[line.rank % len(_RANK_COLOURS)]
    return Text.assemble((log_prefix(line), Style(color=colour)), " ", line.text)


def job_document(record: JobRecord, status: JobStatus) -> dict[str, Any]:
    """Return a job as programs see it."""
    return {
        "id": record.id,
        "handle": record.handle,
        "name": record.name,
        "mode": record.mode,
        "backend": record.backend,
        "nodes": record.nodes,
        "created": record.created_at,
        "state": status.state.value,
        "reason": status.reason,
        "message": status.message,
        "code": {"uri": record.code, "digest": record.digest},
        "script_sha256": record.script_sha256,
        "steps": [asdict(step) for step in (*record.steps, *status.steps)],
        "failure": asdict(status.failure) if status.failure else None,
        "details": dict(status.details),
    }


def state_text(status: JobStatus) -> Text:
    """Return state and reason in the state's colour."""
    reason = f" ({status.reason})" if status.reason else ""
    return Text(status.state.value + reason, style=_STATE_STYLES.get(status.state, "bold"))


def show_report(console: Console, record: JobRecord, status: JobStatus) -> None:
    """Show how a job ended: its state, and if it failed who did first, and that one's last words."""
    console.print(
        Text.assemble(f"job {record.id} ", state_text(status), f": {status.message}" if status.message else "")
    )
    for note in status.details.get("notes", ()):
        console.print(f"  note: {note}")
    failure = status.failure
    if failure is None:
        return
    if failure.last_lines:
        console.print(f"  last lines of {failure.quoted}:")
        for line in failure.last_lines:
            console.print(Text.assemble(("  │ ", "red"), line))
    console.print(f"  all of it: jobsubmit logs {record.id} --{failure.quoted}")


def counted(number: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def exit_code(status: JobStatus, *, propagate: bool = False) -> int:
    """Return the exit code that tells how a job ended."""
    if not status.state.is_final:
        return NOT_FINISHED
    if status.state is State.SUCCEEDED:
        return 0
    if status.state is State.CANCELLED:
        return JOB_CANCELLED
    return status.failure.shell_code if propagate and status.failure else JOB_FAILED


def step_rows(record: JobRecord, status: JobStatus) -> list[tuple[str, str, str]]:
    """Return (step, offset, duration) of each step so far, in seconds as text."""
    steps = (*record.steps, *status.steps)
    origin = steps[0].start if steps else 0.0
    unfinished = "never" if status.state.is_final else "…"
    return [
        (step.name, f"{step.start - origin:.2f} s", f"{step.end - step.start:.2f} s" if step.end else unfinished)
        for step in steps
    ]
