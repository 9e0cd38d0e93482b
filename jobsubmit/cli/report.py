"""The command that says what became of a job's time: report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobsubmit.cli.options import Debug, Format, JobName, OutputFormat
from jobsubmit.cli.output import out
from jobsubmit.errors import UsageError
from jobsubmit.jobs import JobRecords
from jobsubmit.settings import load_settings

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from jobsubmit.report.build import Comparison, Report
    from jobsubmit.report.sync import Sync

_BAR = 40
_MOST_PHASES, _MOST_RANKS = 40, 16
_PHASE_COLOURS = {"training": "green", "checkpoint": "magenta", "queue": "bright_black"}
_COLOURS = {"forward": "blue", "backward": "magenta", "exposed": "red", "rest": "bright_black"}


def report(
    job: JobName,
    other: Annotated[
        str | None, typer.Argument(help="A second job: how does it compare with the first?", metavar="[OTHER]")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write one HTML page, to look at or to pass on.", dir_okay=False
        ),
    ] = None,
    format_: Format = OutputFormat.text,
    debug: Debug = False,
) -> None:
    """Show what became of a job's time: its phases, and what each training step spent on what.

    The steps are timed if the job was submitted with --profile-sync (or `profile: sync` in the job file): forward,
    backward, communication, how much of that no computing hides, and which rank makes the others wait. With a second
    job it shows the ratio of the two, and its spread.

    Examples: jobsubmit create job.yaml --profile-sync --follow && jobsubmit report my-job --html report.html ·
    jobsubmit report job-a job-b
    """
    from jobsubmit.report import build

    settings = load_settings()
    records = JobRecords(settings)
    found = [build.report(records.find(name), settings) for name in (job, *((other,) if other else ()))]
    comparison = build.compare(found[0], found[1]) if other else None
    if html is not None:
        _write_page(html, found, comparison)
    if out.json:
        whole = build.comparison_document(found[0], found[1], comparison) if other else build.document(found[0])
        out.document(whole)
        return
    for one in found:
        _show(one)
    if comparison is not None:
        _show_comparison(found, comparison)
    elif other:
        out.talk("the steps of these two jobs cannot be compared: one of them has none that were timed")
    if html is not None:
        out.talk(f"wrote {html}")


def _write_page(file: Path, found: list[Report], comparison: Comparison | None) -> None:
    from jobsubmit.report.page import page

    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(page(found, comparison), encoding="utf-8", errors="replace")
        temporary.replace(file)
    except OSError as error:
        hint = "name a file in a folder that is there and that you can write to"
        raise UsageError(f"--html {file}: cannot be written: {error.strerror}", hint) from error


def _show(found: Report) -> None:
    from rich.text import Text

    from jobsubmit.cli import job_status

    console = out.stdout
    status = found.status
    console.print(Text.assemble(f"job {found.record.id} ", job_status.state_text(status.state.value, status.reason)))
    for part in [_phases(found), *(part for sync in found.syncs for part in _sync(sync))]:
        console.print()
        console.print(part)
    for mark in found.marks:
        console.print(Text(f"{mark.kind}: {mark.text}", style="red" if mark.kind != "restart" else "yellow"))
    console.print()
    for note in found.notes:
        console.print(f"note: {note}")


def _columns(*names: str) -> Table:
    """Return an empty table; numbers stand on the right, in a column whose name begins with `>`."""
    from rich.table import Column, Table

    columns = (Column(name.lstrip(">"), justify="right" if name.startswith(">") else "left") for name in names)
    return Table(*columns, box=None, pad_edge=False)


def _phases(found: Report) -> RenderableType:
    from rich.text import Text

    from jobsubmit.report.text import phase_name, seconds_text

    table = _columns("phase", ">began after", ">took", "")
    length = max(found.end - found.begin, 1e-6)
    kept = sorted(found.phases, key=lambda phase: -(phase.seconds or found.end - phase.start))[:_MOST_PHASES]
    for phase in [phase for phase in found.phases if phase in kept]:
        spans = [(start - found.begin, (end or found.end) - found.begin) for start, end in phase.spans]
        bar = Text(_bar(spans, length), style=_PHASE_COLOURS.get(phase.name, "cyan"))
        table.add_row(phase_name(phase), seconds_text(spans[0][0]), seconds_text(phase.seconds), bar)
    return table


def _bar(spans: list[tuple[float, float]], length: float) -> str:
    """Return a line of time: each cell that a span touches is full."""
    cells = [" "] * _BAR
    for start, end in spans:
        first = min(_BAR - 1, int(start / length * _BAR))
        last = min(_BAR - 1, int(end / length * _BAR))
        cells[first : last + 1] = "█" * (last + 1 - first)
    return "".join(cells)


def _sync(sync: Sync) -> Iterator[RenderableType]:
    from rich.text import Text

    from jobsubmit.report.text import facts, labels, metric_rows, percent_text, seconds_text, sparkline, straggler_text

    yield Text.assemble((sync.name, "bold"), f": {facts(sync)}")
    table = _columns("per step", ">median", ">95%", ">ranks, from", ">to")
    for row in metric_rows(sync):
        table.add_row(*row)
    yield table
    steps = sync.by_step["step"]
    yield f"step time, over time: {sparkline(steps)} at most {seconds_text(max(steps))}"
    known = labels(sync)
    kinds = [kind for kind in _COLOURS if kind in known]
    ranks = _columns("rank", ">step", ">exposed", ">last", "")
    measured = [rank for rank in sync.ranks if rank.medians]
    longest = max(rank.medians["step"] for rank in measured)
    shown = sorted(sorted(measured, key=lambda rank: -rank.last)[:_MOST_RANKS], key=lambda rank: rank.rank)
    for rank in shown:
        bar = Text()
        for kind in kinds:
            bar.append("█" * round(_BAR * rank.medians[kind] / longest), style=_COLOURS[kind])
        step, exposed = seconds_text(rank.medians["step"]), seconds_text(rank.medians["exposed"])
        ranks.add_row(f"{rank.rank} (node {rank.node})", step, exposed, percent_text(rank.last), bar)
    yield ranks
    yield Text("  ").join([Text.assemble(("█ ", _COLOURS[kind]), known[kind]) for kind in kinds])
    if len(shown) < len(measured):
        yield Text(f"{len(shown)} of {len(measured)} ranks: those that come last most often; -o json has all")
    if text := straggler_text(sync):
        yield Text(text, style="bold red")


def _show_comparison(found: list[Report], comparison: Comparison) -> None:
    from jobsubmit.report.text import ratio_rows

    ids = [one.record.id for one in found]
    table = _columns("per step", *(f">{job_id}" for job_id in ids), ">ratio", ">95% interval")
    for row in ratio_rows(comparison):
        table.add_row(*row)
    out.stdout.print()
    out.stdout.print(table)
    out.talk(f"below 1: {ids[1]} is faster; the interval is of these two runs' steps, another run may differ by more")
