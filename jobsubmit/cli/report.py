"""The command that shows where the time of a job went: report."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import jobsubmit
from jobsubmit.cli.console import READING_OUTPUT, out, readable, said_if_slow, table
from jobsubmit.cli.options import JobName
from jobsubmit.config import Settings, load_settings
from jobsubmit.errors import UsageError
from jobsubmit.jobs.records import JobRecords

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobsubmit.report.model import Comparison, Report
    from jobsubmit.report.steps import Sync

_BAR, _SHORTEST_BAR, _LONGEST_BAR = 40, 12, 80
_OTHER_COLUMNS = 52  # beside a bar
_MOST_PHASES, _MOST_RANKS = 40, 16
_CURVE = 30  # characters
_PHASE_COLOURS = {"training": "green", "checkpoint": "magenta", "queue": "bright_black"}
_PARTS = {
    "forward": ("░", "blue"),
    "backward": ("▒", "magenta"),
    "exposed": ("█", "red"),
    "rest": ("·", "bright_black"),
}


def report(
    job: JobName,
    other: Annotated[
        str | None, typer.Argument(help="A second job, to compare with the first.", metavar="[OTHER]")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the report as one HTML page.", dir_okay=False),
    ] = None,
) -> None:
    """Show where the time of a job went, its curves, and what it used.

    Shows the phases, the share of the time that was training steps (goodput),
    the curves that the training printed, and CPU, memory and accelerators.
    Training steps are timed if the job was submitted with --profile-sync (or
    `profile: sync` in the job file). The report then shows forward, backward
    and communication time, how much communication is not hidden behind
    computation, and which rank makes the others wait. With a second job, it
    shows the ratio of their times, with a 95% interval, and the curves of both.
    """
    from jobsubmit.report import report as build

    settings = load_settings()
    records = JobRecords(settings)
    with said_if_slow(READING_OUTPUT):
        found = [build.report(records.find(name), settings) for name in (job, *((other,) if other else ()))]
    compared = build.compare(found[0], found[1]) if other else ()
    if html is not None:
        _write_page(html, found, compared, settings)
    if out.json:
        whole = build.comparison_document(found[0], found[1], compared) if other else build.document(found[0])
        out.document(whole)
        return
    if other:
        _show_comparison(found, compared)
    else:
        _show(found[0])
    if html is not None:
        out.talk(f"wrote {html}")


def _write_page(file: Path, found: list[Report], compared: Sequence[Comparison], settings: Settings) -> None:
    from jobsubmit.report.html import render_page
    from jobsubmit.report.report import events_text, log_excerpts

    logs = log_excerpts(found[0], settings) if len(found) == 1 else ()
    events = events_text(found[0].record, settings) if len(found) == 1 else ""

    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(
            render_page(found, compared, version=jobsubmit.__version__, logs=logs, events=events),
            encoding="utf-8",
            errors="replace",
        )
        temporary.replace(file)
    except OSError as error:
        hint = "choose a file in an existing folder that you can write to"
        raise UsageError(f"--html {file}: cannot be written: {error.strerror}", hint) from error


def _show(found: Report) -> None:
    from rich.text import Text

    from jobsubmit.cli import formatting

    console = out.stdout
    status = found.status
    console.print(Text.assemble(f"job {found.record.id} ", formatting.state_text(status.state.value, status.reason)))
    parts = [_phases(found), *_goodput(found), *_curves(found), *_machines(found)]
    for part in [*parts, *(part for sync in found.syncs for part in _sync(sync))]:
        console.print()
        console.print(part)
    for mark in readable(found.marks):
        console.print(Text(f"{mark.kind}: {mark.text}", style="red" if mark.kind != "restart" else "yellow"))
    console.print()
    for note in readable(found.notes):
        console.print(f"note: {note}")


def _phases(found: Report) -> RenderableType:
    from rich.text import Text

    from jobsubmit.report.text import phase_name, seconds_text

    rows: list[Sequence[RenderableType]] = []
    length, width = max(found.end - found.begin, 1e-6), _bar_width()
    kept = sorted(found.phases, key=lambda phase: -(phase.seconds or found.end - phase.start))[:_MOST_PHASES]
    for phase in [phase for phase in found.phases if phase in kept]:
        spans = [(start - found.begin, (end or found.end) - found.begin) for start, end in phase.spans]
        bar = Text(_bar(spans, length, width), style=_PHASE_COLOURS.get(phase.name, "cyan"))
        rows.append((readable(phase_name(phase)), seconds_text(spans[0][0]), seconds_text(phase.seconds), bar))
    return table(("phase", ">began after", ">took", ""), rows)


def _goodput(found: Report) -> Iterator[RenderableType]:
    from jobsubmit.report.text import goodput_rows, percent_text

    if found.goodput.share is not None:
        heads = (f"goodput: {percent_text(found.goodput.share)}", ">time", ">share")
        yield table(heads, readable(goodput_rows(found.goodput)))


def _curves(found: Report) -> Iterator[RenderableType]:
    from jobsubmit.report.text import curve_text

    rows = [
        (readable(curve.name), curve.who, f"{curve.lowest:.4g}", f"{curve.last:.4g}", curve_text(curve))
        for curve in found.curves
    ]
    if rows:
        yield table(("metric", "rank", ">lowest", ">last", "curve"), rows)


def _machines(found: Report) -> Iterator[RenderableType]:
    from jobsubmit.report.machine_use import accelerator_rows, rank_rows

    if ranks := rank_rows(found.machines)[:_MOST_RANKS]:
        yield table(("process", "node", ">busy cores", ">peak memory", ">read", ">written"), ranks)
    if accelerators := accelerator_rows(found.machines)[:_MOST_RANKS]:
        heads = ("node", "accelerator", ">busy", ">peak memory", ">of", ">power", ">hottest")
        yield table(heads, accelerators)


def _bar_width() -> int:
    """Return the length of a bar: the width that the other columns leave."""
    if not sys.stdout.isatty():
        return _BAR
    return min(_LONGEST_BAR, max(_SHORTEST_BAR, out.stdout.width - _OTHER_COLUMNS))


def _bar(spans: list[tuple[float, float]], length: float, width: int) -> str:
    """Return a timeline: each cell that a span touches is filled."""
    cells = [" "] * width
    for start, end in spans:
        first, last = (min(width - 1, max(0, int(moment / length * width))) for moment in (start, end))
        cells[first : last + 1] = "█" * (last + 1 - first)
    return "".join(cells)


def _sync(sync: Sync) -> Iterator[RenderableType]:
    from rich.text import Text

    from jobsubmit.common.sizes import bytes_text
    from jobsubmit.report.text import facts, metric_rows, seconds_text, sparkline, straggler_text

    yield Text.assemble((readable(sync.name), "bold"), f": {facts(sync)}")
    yield table(("per step", ">median", ">p95", ">ranks, from", ">to"), metric_rows(sync))
    steps = sync.step_medians
    yield f"step time over the run: {sparkline(steps)} at most {seconds_text(max(steps))}"
    yield from _ranks(sync)
    if sync.bucket_medians:
        rows = [(str(number), bytes_text(size), seconds_text(took)) for number, size, took in sync.bucket_medians]
        yield table(("bucket", ">size", ">all-reduce, without waiting"), rows)
    if text := straggler_text(sync):
        yield Text(text, style="bold red")


def _ranks(sync: Sync) -> Iterator[RenderableType]:
    from rich.text import Text

    from jobsubmit.report.text import labels, seconds_text

    known, width = labels(sync), _bar_width()
    parts = {kind: part for kind, part in _PARTS.items() if kind in known}
    rows: list[Sequence[RenderableType]] = []
    measured = [rank for rank in sync.ranks if rank.medians]
    longest = max(rank.medians["step"] for rank in measured)
    shown = sorted(sorted(measured, key=lambda rank: -rank.last)[:_MOST_RANKS], key=lambda rank: rank.rank)
    for rank in shown:
        bar = Text()
        for kind, (sign, colour) in parts.items():
            bar.append(sign * round(width * rank.medians[kind] / longest), style=colour)
        step, exposed = seconds_text(rank.medians["step"]), seconds_text(rank.medians["exposed"])
        rows.append((f"{rank.rank} (node {rank.node})", step, exposed, f"{rank.last:.0%}", bar))
    yield table(("rank", ">step", ">communication" if sync.by_hand else ">exposed", ">last", ""), rows)
    yield Text("  ").join([Text.assemble((f"{sign} ", colour), known[kind]) for kind, (sign, colour) in parts.items()])
    if len(shown) < len(measured):
        yield Text(f"{len(shown)} of {len(measured)} ranks, those that are last most often; -o json shows all")


def _show_comparison(found: list[Report], compared: Sequence[Comparison]) -> None:
    from rich.text import Text

    from jobsubmit.report.curves import common_curves
    from jobsubmit.report.text import curve_text, phase_rows, ratio_rows, straggler_text

    ids = [one.record.id for one in found]
    jobs = [f">{job_id}" for job_id in ids]
    for one in compared:
        names = dict.fromkeys((one.first.name, one.second.name))
        heads = (f"{' and '.join(names)}, per step", *jobs, ">ratio", ">95% interval")
        out.stdout.print(table(heads, ratio_rows(one)))
        out.stdout.print()
    out.stdout.print(table(("phase, in total", *jobs), phase_rows(found[0], found[1])))
    pairs = common_curves(found[0].curves, found[1].curves)
    if pairs:
        rows = [
            (
                readable(one.name),
                f"{one.last:.4g}",
                f"{other.last:.4g}",
                curve_text(one, _CURVE),
                curve_text(other, _CURVE),
            )
            for one, other in pairs
        ]
        out.stdout.print()
        out.stdout.print(table(("metric, last value", *jobs, f"curve of {ids[0]}", f"of {ids[1]}"), rows))
    for report in found:
        for text in filter(None, map(straggler_text, report.syncs)):
            out.stdout.print(Text(f"{report.record.id}: {text}", style="bold red"))
    if compared:
        out.talk(
            f"below 1: {ids[1]} is faster; the interval covers only these two runs; another run may differ by more"
        )
