"""What the page of a job shows, as values that a template only has to place. All texts are English and unescaped."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jobsubmit.backends.models import State
from jobsubmit.common.code_paths import short_paths
from jobsubmit.common.durations import time_text
from jobsubmit.common.sizes import bytes_text
from jobsubmit.metrics.model import Progress
from jobsubmit.report import charts
from jobsubmit.report.charts import Chart, percent
from jobsubmit.report.curves import common_curves
from jobsubmit.report.job_phases import CHECKPOINT, TRAINING, Phase
from jobsubmit.report.machine_use import (
    AcceleratorUse,
    RankUse,
    accelerator_rows,
    accelerator_text,
    accelerators_of_ranks,
)
from jobsubmit.report.model import Comparison, Paper, Report
from jobsubmit.report.steps import RankTimes, Sync
from jobsubmit.report.text import (
    facts,
    goodput_rows,
    labels,
    metric_rows,
    percent_text,
    phase_name,
    phase_rows,
    ratio_rows,
    seconds_text,
    straggler_text,
)
from jobsubmit.report.training_text import duration_text, step_cell

ABSENT = "–"  # noqa: RUF001 - a dash for a figure that there is not
_MOST_RANKS, _MOST_NODES, _MOST_COMPARED = 64, 16, 4
_MOST_BARS, _MOST_MARKS = 100, 20
_LAST_LINES = 8
_PARTS = ("forward", "backward", "exposed", "rest")
_KINDS = {
    State.SUCCEEDED: "good",
    State.FAILED: "bad",
    State.LOST: "lost",
    State.UNKNOWN: "lost",
    State.RUNNING: "run",
    State.STARTING: "run",
    State.RECOVERING: "run",
    State.CANCELLED: "off",
    State.CANCELLING: "off",
}
_SHAPES = {"good": "●", "bad": "✕", "lost": "?", "run": "▶", "off": "⊘", "wait": "○"}


class Fact(NamedTuple):
    """A figure with its label; `more` explains it, or says why it is absent."""

    label: str
    value: str
    more: str = ""


class Part(NamedTuple):
    """A part of a bar, from 0 to 1000: `kind` is its colour."""

    kind: str
    label: str
    text: str
    start: str
    width: str


@dataclass(frozen=True)
class RankRow:
    """A rank of the job, and its lane: the parts of its median step."""

    name: str
    node: str
    place: str  # what became of it: "failed first", "ended as a result"
    progress: str
    step: str
    late: str
    cores: str
    memory: str
    accelerator: str
    parts: tuple[Part, ...]
    is_marked: bool


@dataclass(frozen=True)
class JobView:
    """The page of one job."""

    id: str
    name: str
    state: str
    reason: str
    kind: str
    shape: str
    sentence: str
    subtitle: str
    done: str  # of the bar, from 0 to 1000; empty without one
    done_text: str
    facts: tuple[Fact, ...]
    failure: Mapping[str, Any] | None
    calls: tuple[str, ...]
    span: str
    phases: tuple[Mapping[str, Any], ...]
    marks: tuple[Mapping[str, Any], ...]
    goodput: Mapping[str, Any] | None
    curves: tuple[Chart, ...]
    memories: tuple[Chart, ...]
    ranks: tuple[RankRow, ...]
    left_out: str
    accelerators: tuple[tuple[str, ...], ...]
    syncs: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    origin: tuple[tuple[str, str], ...]
    stacks: tuple[Paper, ...]
    papers: tuple[Paper, ...]


def state_kind(state: State) -> str:
    """Return which of the six kinds a state is: good, bad, lost, run, off, wait. A page has a colour for each."""
    return _KINDS.get(state, "wait")


def state_shape(kind: str) -> str:
    """Return the sign of a kind of state, for readers who do not see its colour."""
    return _SHAPES[kind]


def view_job(report: Report, now: float | None = None) -> JobView:
    """Return what the page of a job shows; `now` is the time for a job that runs."""
    now = time.time() if now is None else now
    status, begin, record = report.status, report.begin, report.record
    length = max(report.end - begin, 1e-6)
    kind = state_kind(status.state)
    restarts = [mark.t for mark in report.marks if mark.kind == "restart"]
    done = report.training.done
    ranks, left_out = _ranks(report)
    stacks = tuple(paper for paper in report.papers if paper.name.startswith("stacks of "))
    return JobView(
        record.id,
        record.name,
        status.state.value,
        status.reason,
        kind,
        state_shape(kind),
        _sentence(report, now),
        f"mode {record.mode}, backend {record.backend}, {_counted(record.nodes, 'node')}",
        "" if done is None or status.state is State.SUCCEEDED else percent(done, 1.0),
        "" if done is None else f"{done:.0%}",
        tuple(_facts(report, now)),
        _failure(report),
        tuple(text for sync in report.syncs if (text := straggler_text(sync))),
        f"{seconds_text(length)} in total, from {time_text(begin)}",
        tuple(_phase(report, phase, begin, length) for phase in report.phases),
        tuple(
            {**mark._asdict(), "at": percent(mark.t - begin, length), "after": seconds_text(mark.t - begin)}
            for mark in report.marks[:_MOST_MARKS]
        ),
        _goodput(report),
        tuple(charts.draw_curve(curve, begin, restarts) for curve in report.curves),
        tuple(charts.draw_memory(node, begin) for node in report.machines.nodes[:_MOST_NODES] if node.memory),
        ranks,
        left_out,
        tuple(accelerator_rows(report.machines)[:_MOST_RANKS]),
        tuple(_sync(sync, begin) for sync in report.syncs),
        report.notes,
        tuple((name, value) for name, value in _origin(report).items() if value),
        stacks,
        tuple(paper for paper in report.papers if paper not in stacks),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _sentence(report: Report, now: float) -> str:
    """Return how it is going, or what went wrong."""
    status = report.status
    if status.message:
        return status.message
    if status.state is State.SUCCEEDED:
        return f"It ended after {seconds_text(report.end - report.begin)}."
    training = report.training
    if status.state is State.RUNNING and training.done is not None:
        left = f", {duration_text(max(0.0, training.end - now))} left" if training.end is not None else ""
        return f"{training.done:.0%} done{left}"
    return "It is running." if status.state is State.RUNNING else ""


def _facts(report: Report, now: float) -> list[Fact]:
    training, is_over = report.training, report.status.state.is_final
    found = []
    if step := step_cell(training):
        label, _, value = step.rpartition(" ")
        found.append(Fact(label or "step", value, ""))
    for curve in report.curves[:1]:
        found.append(Fact(curve.name, charts.number_text(curve.last), f"lowest {charts.number_text(curve.lowest)}"))
    if not is_over:
        left = duration_text(max(0.0, training.end - now)) if training.end is not None else ABSENT
        why = "at the pace so far" if training.end is not None else "the output shows no total number of steps"
        found.append(Fact("time left", left, why))
    end = report.end if is_over else max(now, report.end)
    found.append(Fact("total time", seconds_text(end - report.begin), "since the first phase"))
    if report.goodput.share is not None:
        found.append(Fact("goodput", percent_text(report.goodput.share), "of the wall time"))
    for sync in report.syncs[:1]:
        step_time, exposed = sync.spreads["step"].median, sync.spreads["exposed"].median
        found.append(Fact("median step", seconds_text(step_time), f"of {sync.steps} steps"))
        found.append(Fact("exposed", percent_text(exposed / step_time), f"{seconds_text(exposed)} of a step"))
        if sync.bandwidth:
            found.append(Fact("bus bandwidth", f"{bytes_text(sync.bandwidth)}/s", f"{bytes_text(sync.size)} a step"))
    return found


def _failure(report: Report) -> Mapping[str, Any] | None:
    """Return which process failed first, its last lines, and their meaning."""
    failure = report.status.failure
    if failure is None:
        return None
    is_hang = report.status.reason == "HANG"
    return {
        "title": f"Stack of {failure.quoted}" if is_hang else f"Last lines of {failure.quoted}",
        "lines": short_paths("\n".join(failure.last_lines[-_LAST_LINES:])),
        "earlier": short_paths("\n".join(failure.last_lines[:-_LAST_LINES])),
        "meaning": failure.meaning,
        "hint": failure.hint,
        "victims": failure.others,
    }


def _phase(report: Report, phase: Phase, begin: float, length: float) -> Mapping[str, Any]:
    return {
        "name": phase_name(phase),
        "kind": phase.name if phase.name in (TRAINING, CHECKPOINT, "queue") else "other",
        "bars": [
            (percent(start - begin, length), percent((end or report.end) - start, length))
            for start, end in phase.spans[:: math.ceil(len(phase.spans) / _MOST_BARS)]
        ],
        "took": seconds_text(phase.seconds),
        "title": f"{phase.name}: began after {seconds_text(phase.start - begin)}",
    }


def _goodput(report: Report) -> Mapping[str, Any] | None:
    share = report.goodput.share
    if share is None:
        return None
    return {"share": percent_text(share), "rows": goodput_rows(report.goodput), "width": percent(share, 1.0)}


def _origin(report: Report) -> dict[str, str]:
    """Return the origin of a job's code, and where the job ran."""
    record, details = report.record, report.status.details
    git = record.revision or {}
    uncommitted = len(git.get("uncommitted", ()))
    commit = str(git.get("commit", ""))
    if commit and uncommitted:
        commit += f", with {_counted(uncommitted, 'uncommitted path')}"
    return {
        "handle": record.handle,
        "submitted": record.created_at,
        "commit": commit,
        "branch": str(git.get("branch", "")),
        "code": record.code,
        "digest": record.digest or "",
        "Python of the nodes": record.python,
        "rerun of": record.rerun_of,
        "nodes": ", ".join(map(str, details.get("addresses", ())[:_MOST_RANKS])),
        "last step": str(details.get("last_step") or ""),
        "checkpoints": str(details.get("checkpoint_dir", "")),
    }


def _ranks(report: Report) -> tuple[tuple[RankRow, ...], str]:
    """Return a row for each rank that is known; of many the ones that matter, and how many those are."""
    times = {str(rank.rank): rank for sync in report.syncs[:1] for rank in sync.ranks}
    used = {use.name: use for use in report.machines.ranks}
    progress = {f"node {node}" if rank is None else str(rank): at for (node, rank), at in report.progress}
    accelerators = accelerators_of_ranks(report.machines)
    places = _places(report)
    names = sorted({*times, *used, *progress, *places}, key=lambda name: (not name.isdigit(), len(name), name))
    chosen = names if len(names) <= _MOST_RANKS else _important(names, places, times)
    rows = tuple(
        _rank_row(name, report, places, times.get(name), used.get(name), progress.get(name), accelerators.get(name))
        for name in chosen
    )
    return rows, f"{len(chosen)} of {len(names)} ranks" if len(chosen) < len(names) else ""


def _important(names: Sequence[str], places: Mapping[str, str], times: Mapping[str, RankTimes]) -> list[str]:
    """Return the ranks that failed, those that come last most often, and as many others as there is room for."""
    failed = [name for name in names if name in places][: _MOST_RANKS // 2]
    late = sorted(times, key=lambda name: -times[name].last)[: _MOST_RANKS // 4]
    kept = list(dict.fromkeys([*failed, *late, *names]))[:_MOST_RANKS]
    return [name for name in names if name in kept]


def _rank_row(
    name: str,
    report: Report,
    places: Mapping[str, str],
    rank: RankTimes | None,
    use: RankUse | None,
    at: Progress | None,
    accelerator: AcceleratorUse | None,
) -> RankRow:
    sync = report.syncs[0] if report.syncs else None
    medians = rank.medians if rank else {}
    longest = max((one.medians["step"] for one in sync.ranks if one.medians), default=1.0) if sync else 1.0
    node = (
        rank.node
        if rank
        else use.node
        if use
        else report.nodes_of_ranks.get(name, name.removeprefix("node ") if name.startswith("node ") else "")
    )
    place = places.get(name, "")
    is_late = sync is not None and rank is not None and _is_straggler(sync, rank)
    return RankRow(
        f"rank {name}" if name.isdigit() else name,
        str(node),
        place,
        "" if at is None else f"{at.step:,}" if at.step is not None else f"epoch {at.epoch:g}",
        seconds_text(medians["step"]) if medians else ABSENT,
        percent_text(rank.last) if rank and medians else ABSENT,
        ABSENT if use is None or use.cores is None else f"{use.cores:.2f}",
        ABSENT if use is None else bytes_text(use.memory),
        accelerator_text(accelerator),
        _parts(labels(sync), medians, longest) if sync and medians else (),
        place.startswith("failed") or is_late,
    )


def _places(report: Report) -> dict[str, str]:
    """Return what became of the ranks of a job that failed, by their names."""
    failure = report.status.failure
    if failure is None:
        return {}
    found = {str(rank): "ended as a result" for rank in failure.victims}
    found |= {str(rank): "the same failure" for rank in failure.alike}
    first = str(failure.rank) if failure.rank is not None else f"node {failure.node}"
    return {**found, first: "failed first"}


def _is_straggler(sync: Sync, rank: RankTimes) -> bool:
    found = sync.straggler
    return found is not None and (found.rank == rank.rank or (found.rank is None and found.node == rank.node))


def _parts(known: Mapping[str, str], medians: Mapping[str, float], whole: float) -> tuple[Part, ...]:
    found, start = [], 0.0
    for kind in _PARTS:
        if kind in known:
            width = medians[kind]
            found.append(Part(kind, known[kind], seconds_text(width), percent(start, whole), percent(width, whole)))
            start += width
    return tuple(found)


def _sync(sync: Sync, begin: float) -> Mapping[str, Any]:
    known = labels(sync)
    medians = {name: spread.median for name, spread in sync.spreads.items()}
    return {
        "title": f"{sync.name}, timed by hand" if sync.by_hand else sync.name,
        "subtitle": facts(sync),
        "legend": [(kind, known[kind]) for kind in _PARTS if kind in known],
        "parts": _parts(known, medians, medians["step"]),
        "metrics": metric_rows(sync),
        "chart": charts.draw_steps(
            [(end, seconds) for (end, _), seconds in zip(sync.timeline, sync.step_medians, strict=False)], begin
        ),
        "buckets": [(str(number), bytes_text(size), seconds_text(took)) for number, size, took in sync.bucket_medians],
    }


@dataclass(frozen=True)
class ComparisonView:
    """Two or more jobs side by side."""

    names: tuple[str, ...]
    models: tuple[Mapping[str, Any], ...]
    phases: tuple[tuple[str, ...], ...]
    curves: tuple[Chart, ...]
    curves_over_time: tuple[Chart, ...]
    differences: tuple[Paper, ...]
    facts: tuple[tuple[str, ...], ...]


def view_comparison(
    reports: Sequence[Report], comparisons: Sequence[Comparison] = (), differences: Sequence[Paper] = ()
) -> ComparisonView:
    """Return how jobs compare; `differences` are the unified diffs of their job files to the first one's."""
    reports = reports[:_MOST_COMPARED]
    common = {pair[0].name for other in reports[1:] for pair in common_curves(reports[0].curves, other.curves)}
    shared = [[curve for curve in report.curves if curve.name in common] for report in reports]
    drawn, over_time = [], []
    for curve in shared[0]:
        pairs = [
            (report.record.id, own, report.begin)
            for report, curves in zip(reports, shared, strict=True)
            for own in curves
            if own.name == curve.name
        ]
        drawn.append(charts.draw_pair(pairs))
        if all(own.is_by_step for _, own, _ in pairs):
            over_time.append(charts.draw_pair(pairs, by_time=True))
    rows = [[(fact.label, fact.value) for fact in _facts(report, report.end)] for report in reports]
    names = list(dict.fromkeys(label for row in rows for label, _ in row))
    return ComparisonView(
        tuple(report.record.id for report in reports),
        tuple({"name": _pair_name(one), "rows": ratio_rows(one)} for one in comparisons),
        tuple(phase_rows(*reports)),
        tuple(drawn),
        tuple(over_time),
        tuple(differences),
        tuple((name, *(dict(row).get(name, ABSENT) for row in rows)) for name in names),
    )


def _pair_name(one: Comparison) -> str:
    return " and ".join(dict.fromkeys((one.first.name, one.second.name)))
