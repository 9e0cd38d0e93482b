"""The command that shows what a training prints about itself: metrics."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Annotated, Any, Literal, TypeAlias

import typer

from jobsubmit.backends.models import LogQuery
from jobsubmit.cli import console
from jobsubmit.cli.console import out
from jobsubmit.cli.logs import line_time, say_why_it_waits
from jobsubmit.cli.options import JobName, rank_numbers
from jobsubmit.config import Settings
from jobsubmit.errors import INTERRUPTED
from jobsubmit.jobs import monitor as following
from jobsubmit.jobs.progress import open_metrics
from jobsubmit.jobs.records import JobRecord, find_job
from jobsubmit.metrics.collection import Metrics, Series
from jobsubmit.metrics.model import Point, Progress
from jobsubmit.metrics.observations import observe
from jobsubmit.metrics.source_reader import Reading, Source
from jobsubmit.report.training_text import duration_text

_COLUMNS = ("time", "node", "rank", "name", "epoch", "step", "value")
_CURVE = 30  # characters
Output: TypeAlias = Literal["text", "json", "csv"]


def _set_output(value: Output) -> Output:
    out.json = value == "json"
    return value


def metrics(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new values until the job ends.")] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="R", min=0, help="Only this rank.", autocompletion=rank_numbers)
    ] = None,
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", callback=_set_output, is_eager=True, help="text for people, json or csv for programs."
        ),
    ] = "text",
) -> None:
    """Show the curves that a training run prints: loss, learning rate, accuracy.

    Reads them from the output of the ranks, without changes to your code. Shows
    a series only if it is certain: at least two lines with a result beside a
    step or an epoch, or two lines of the same form with different losses. Names
    are as printed, in lower case. A word for validation is put before them, as
    in val_loss. Also reads TensorBoard event files in the outputs and
    checkpoints of the job. The field `metrics` of a job file
    adds patterns of your own.
    """
    record, settings = find_job(job)
    found = open_metrics(record, settings)
    try:
        readings = _read(record, settings, found, rank, follow=follow)
        if output == "csv":
            _print_csv(readings)
        elif follow and output == "text":
            _print_lines(readings)
        else:
            with nullcontext() if follow else console.said_if_slow(console.READING_OUTPUT):
                for _ in readings:
                    pass
            if rank is None and not follow:
                from jobsubmit.jobs.event_files import read_event_files  # it loads the stores

                read_event_files(record, settings, found)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    is_final = output == "csv" or following.status(record, settings).state.is_final
    end = None if is_final else found.end()
    if output == "json":
        out.document(_document(record.id, found, end))
    elif output == "text":
        if not follow:
            _print_summary(record, found, end, is_final=is_final)
        for note in observe(found):
            out.talk(f"note: {note}")


def _read(
    record: JobRecord, settings: Settings, found: Metrics, rank: int | None, *, follow: bool
) -> Iterator[Reading]:
    query = LogQuery(rank=rank)
    for line in following.logs(record, settings, query, follow=follow, on_wait=say_why_it_waits(record)):
        yield from found.read((line.node, line.rank), line.time, line.text)


def _print_csv(readings: Iterator[Reading]) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="")

    def write(row: tuple[object, ...]) -> None:
        writer.writerow(row)
        out.data(buffer.getvalue())
        buffer.seek(0)
        buffer.truncate()

    write(_COLUMNS)
    for (node, rank), name, point in readings:
        position = ("" if point.epoch is None else f"{point.epoch:g}", "" if point.step is None else point.step)
        write((line_time(point.time), node, "" if rank is None else rank, name, *position, repr(point.value)))


def _print_lines(readings: Iterator[Reading]) -> None:
    for source, name, point in readings:
        out.data(f"[{_who(source)}] {' '.join((*_position_words(point), name, _number(point.value)))}")


def _print_summary(record: JobRecord, found: Metrics, end: float | None, *, is_final: bool) -> None:
    series = found.series()
    if not series and not is_final:
        out.talk(f"no metrics yet: run `jobsubmit metrics {record.id}` again once the job has printed some steps")
        return
    if not series:
        out.talk(
            "no metrics: no rank prints a loss or accuracy beside its step or epoch, as in `step 5 loss 0.9`; for "
            "another format, set in the job file e.g. metrics: {loss: 'train=([0-9.]+)', step: 'it ([0-9]+)'}; see "
            f"jobsubmit logs {record.id}"
        )
        return
    for source, progress in found.progress().items():
        out.data(f"{_who(source)}: {_progress_text(progress)}")
    if end is not None:
        out.data(f"time left: {duration_text(max(0.0, end - time.time()))}")
    heads = ("series", "rank", ">points", ">first", ">lowest", ">highest", ">last", "curve")
    out.table(heads, [_row(one, console.readable) for one in series])


def _row(series: Series, readable: Callable[[str], str]) -> tuple[str, ...]:
    from jobsubmit.report.text import sparkline

    values = [point.value for point in series.points if math.isfinite(point.value)]
    lowest, highest = (min(values), max(values)) if values else (math.nan, math.nan)
    curve = sparkline([value - lowest for value in values], _CURVE) if highest > lowest else ""
    numbers = (series.points[0].value, lowest, highest, series.last.value)
    return (readable(series.name), _who(series.source), f"{series.count:,}", *map(_number, numbers), curve)


def _who(source: Source) -> str:
    node, rank = source
    return f"node {node}" if rank is None else f"rank {rank}"


def _position_words(point: Point) -> Iterator[str]:
    if point.epoch is not None:
        yield f"epoch {point.epoch:g}"
    if point.step is not None:
        yield f"step {point.step}"


def _progress_text(progress: Progress) -> str:
    counters = (("epoch", progress.epoch, progress.epochs), ("step", progress.step, progress.steps))
    shown = [
        f"{name} {number:g}" + (f" of {total:,}" if total else "")
        for name, number, total in counters
        if number is not None
    ]
    return ", ".join(shown)


def _number(value: float) -> str:
    return f"{value:.6g}"


def _document(job_id: str, found: Metrics, end: float | None) -> dict[str, Any]:
    return {
        "id": job_id,
        "progress": [
            {**_source_fields(source), "time": line_time(progress.time), "step": progress.step, "steps": progress.steps}
            | {"epoch": progress.epoch, "epochs": progress.epochs}
            for source, progress in found.progress().items()
        ],
        "series": [
            {**_source_fields(one.source), "name": one.name, "count": one.count, "every": one.every}
            | {"points": [_point_fields(point) for point in one.points]}
            for one in found.series()
        ],
        "ends": None if end is None else line_time(end),
        "notes": observe(found),
    }


def _source_fields(source: Source) -> dict[str, Any]:
    return {"node": source[0], "rank": source[1]}


def _point_fields(point: Point) -> dict[str, Any]:
    value = point.value if math.isfinite(point.value) else str(point.value)
    return {"time": line_time(point.time), "epoch": point.epoch, "step": point.step, "value": value}
