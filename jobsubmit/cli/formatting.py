"""Format the state, the output and the end of a job as text and as JSON."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from jobsubmit.backends.models import JobStatus, LogLine, Recovery, State
from jobsubmit.cli.console import counted, out, readable, without_steering
from jobsubmit.common.code_paths import short_paths
from jobsubmit.common.language import translate
from jobsubmit.errors import JOB_CANCELLED, JOB_FAILED, NOT_FINISHED
from jobsubmit.jobs.monitor import phases_of
from jobsubmit.jobs.records import JobRecord

if TYPE_CHECKING:
    from rich.text import Text

    from jobsubmit.report.job_phases import Phase

_STATE_STYLES: dict[str, str] = {
    State.SUCCEEDED: "bold green",
    State.FAILED: "bold red",
    State.LOST: "bold red",
    State.CANCELLED: "bold yellow",
}
_RANK_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


@functools.cache
def coloured(prefix: str, rank: int | None) -> str:
    """Return a prefix in the colour of its rank, with terminal escapes."""
    from rich.color import ColorSystem
    from rich.style import Style

    colour = "bright_black" if rank is None else _RANK_COLOURS[rank % len(_RANK_COLOURS)]
    return Style(color=colour).render(prefix, color_system=ColorSystem.STANDARD)


def log_text(line: LogLine, *, colour: bool, raw: bool) -> str:
    """Return a line with its prefix. There may be millions of lines, so rich draws only the prefixes, once each.

    Unless `raw`, control characters are escaped.
    """
    prefix = f"[node {line.node}]" if line.rank is None else f"[rank {line.rank}]"
    text = line.text if raw else without_steering(line.text)
    return f"{coloured(prefix, line.rank) if colour else prefix} {text}"


def job_document(record: JobRecord, status: JobStatus) -> dict[str, Any]:
    """Return a job as a JSON document."""
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
        "code": {"uri": record.code, "digest": record.digest, "git": record.revision},
        "script_sha256": record.script_sha256,
        "steps": [asdict(step) for step in phases_of(record, status)],
        "recoveries": [asdict(recovery) for recovery in status.recoveries],
        "failure": asdict(status.failure) if status.failure else None,
        "details": dict(status.details),
        "warnings": list(record.warnings),
    }


def state_text(state: str, reason: str) -> Text:
    """Return state and reason in the state's colour."""
    from rich.text import Text

    return Text(_with_reason(state, reason), style=_STATE_STYLES.get(state, "bold"))


def show_report(stream: TextIO, record: JobRecord, status: JobStatus) -> None:
    """Show how a job ended: its state and, if it failed, the process that failed first and its last lines."""
    status = readable(status, stream)
    show = functools.partial(_show_message, stream)
    state = (_with_reason(status.state.value, status.reason), _STATE_STYLES.get(status.state.value, "bold"))
    show(f"job {record.id} ", state, f": {status.message}" if status.message else "")
    for warning in record.warnings:
        show((f"  warning: {warning}", "yellow"))
    for note in status.details.get("notes", ()):
        show(f"  note: {note}")
    for recovery in status.recoveries:
        show(f"  {recovery_text(recovery)}")
    failure = status.failure
    if failure is None:
        return
    if failure.last_lines:
        is_hang = status.reason == "HANG"
        show(f"  stack of {failure.quoted}:" if is_hang else f"  last lines of {failure.quoted}:")
        for line in failure.last_lines:
            out.styled(stream, ("  │ ", "red"), short_paths(line))
    for line in failure.others:
        show(f"  {line}")
    if failure.meaning:
        show("  meaning: ", (failure.meaning, "bold"))
        show(f"  hint: {failure.hint}")
    out.styled(stream, translate("  full log: "), f"jobsubmit logs {record.id} --{failure.quoted}")


def _show_message(stream: TextIO, *parts: str | tuple[str, str]) -> None:
    """Show a line of parts with or without a style, in the reader's language."""
    said = (translate(part) if isinstance(part, str) else (translate(part[0]), part[1]) for part in parts)
    out.styled(stream, *said, is_message=True)


def _with_reason(state: str, reason: str) -> str:
    return state + (f" ({reason})" if reason else "")


def recovery_text(recovery: Recovery) -> str:
    """Return one line about the cost of a restart or a lost node."""
    cause = f" (fault: {recovery.fault})" if recovery.fault else ""
    facts = [f"detected after {recovery.detected_at - recovery.struck_at:.1f} s"]
    if recovery.back_at is not None:
        facts.append(f"training again after {recovery.back_at - recovery.struck_at:.1f} s")
    if recovery.steps_lost is not None:
        facts.append(f"{counted(recovery.steps_lost, 'step')} repeated")
    return f"{recovery.what}{cause}: {', '.join(facts)}"


def exit_code(status: JobStatus, *, propagate: bool = False) -> int:
    """Return the exit code for the final state of a job."""
    if not status.state.is_final:
        return NOT_FINISHED
    if status.state is State.SUCCEEDED:
        return 0
    if status.state is State.CANCELLED:
        return JOB_CANCELLED
    return status.failure.shell_code if propagate and status.failure else JOB_FAILED


def phase_rows(phases: Sequence[Phase], *, is_final: bool) -> list[tuple[str, str, str]]:
    """Return (name, offset, duration) of each phase so far, in seconds as text."""
    origin = phases[0].start if phases else 0.0
    unfinished = "unfinished" if is_final else "…"
    return [
        (
            phase.name + (f" (restart {phase.attempt})" if phase.attempt else ""),
            f"{phase.start - origin:.2f} s",
            unfinished if phase.seconds is None else f"{phase.seconds:.2f} s",
        )
        for phase in phases
    ]
