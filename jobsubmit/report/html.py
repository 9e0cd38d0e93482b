"""Render a report as one self-contained HTML page: no script, no network."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import jinja2

from jobsubmit.backends.models import State
from jobsubmit.common.code_paths import short_paths
from jobsubmit.common.durations import time_text
from jobsubmit.common.resources import TEMPLATES
from jobsubmit.common.sizes import bytes_text
from jobsubmit.report.curves import Curve, common_curves
from jobsubmit.report.job_phases import CHECKPOINT, TRAINING
from jobsubmit.report.machine_use import NodeUse, accelerator_rows, rank_rows
from jobsubmit.report.model import Comparison, Report
from jobsubmit.report.statistics import percentile
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

_MOST_RANKS = 32
_MOST_BARS, _MOST_MARKS = 100, 20
_MOST_POINTS = 400
_TOP_OVER_P95 = 2.0
_ALMOST_ALL, _ROOM, _MOST_NODES = 0.98, 0.05, 16
_DECADES = 100  # the highest value is so many times the lowest: a linear scale would show one of them only
_PARTS = ("forward", "backward", "exposed", "rest")


def render_page(reports: Sequence[Report], comparisons: Sequence[Comparison] = (), *, version: str) -> str:
    """Return the page of a job, or of two jobs and their comparison; every text in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    ids = [report.record.id for report in reports]
    is_compared = len(reports) > 1
    return environment.get_template("report.html.j2").render(
        title=" and ".join(ids),
        views=[_view(report) for report in reports],
        comparison=_comparison(reports, comparisons) if is_compared else None,
        version=version,
        written=time_text(time.time()),
    )


def _view(report: Report) -> dict[str, Any]:
    status, begin = report.status, report.begin
    length = max(report.end - begin, 1e-6)
    record = report.record
    return {
        "id": record.id,
        "name": record.name,
        "subtitle": f"{record.mode} on {record.backend}, {record.nodes} node{'s' * (record.nodes != 1)}, submitted "
        f"{record.created_at}",
        "state": status.state.value + (f" ({status.reason})" if status.reason else ""),
        "message": status.message,
        "is_good": status.state is State.SUCCEEDED,
        "is_bad": status.state in (State.FAILED, State.LOST),
        "cards": _cards(report),
        "calls": [text for sync in report.syncs if (text := straggler_text(sync))],
        "span": f"{seconds_text(length)} in total, from {time_text(begin)}",
        "phases": [
            {
                "name": phase_name(phase),
                "kind": phase.name if phase.name in (TRAINING, CHECKPOINT, "queue") else "",
                "bars": [
                    {"left": _percent(start - begin, length), "width": _percent((end or report.end) - start, length)}
                    for start, end in phase.spans[:: math.ceil(len(phase.spans) / _MOST_BARS)]
                ],
                "took": seconds_text(phase.seconds),
                "title": f"{phase.name}: began after {seconds_text(phase.start - begin)}",
            }
            for phase in report.phases
        ],
        "marks": [
            {**mark._asdict(), "left": _percent(mark.t - begin, length), "after": seconds_text(mark.t - begin)}
            for mark in report.marks[:_MOST_MARKS]
        ],
        "goodput": _goodput_view(report),
        "curves": [_curve_view(curve, begin) for curve in report.curves],
        "memories": [_memory_view(node, begin) for node in report.machines.nodes[:_MOST_NODES] if node.memory],
        "processes": rank_rows(report.machines)[:_MOST_RANKS],
        "accelerators": accelerator_rows(report.machines)[:_MOST_RANKS],
        "syncs": [_sync_view(sync, begin) for sync in report.syncs],
        "notes": report.notes,
        "failure": _failure(report),
        "origin": [(name, value) for name, value in _origin(report).items() if value],
        "papers": report.papers,
    }


def _failure(report: Report) -> dict[str, Any] | None:
    """Return which process failed first, its last lines, and their meaning."""
    failure = report.status.failure
    if failure is None:
        return None
    return {
        "title": f"Stack of {failure.quoted}" if report.status.reason == "HANG" else f"Last lines of {failure.quoted}",
        "lines": short_paths("\n".join(failure.last_lines)),
        "meaning": failure.meaning,
        "hint": failure.hint,
        "victims": "; ".join(failure.others),
    }


def _origin(report: Report) -> dict[str, str]:
    """Return the origin of a job's code, and where the job ran."""
    record, details = report.record, report.status.details
    git = record.revision or {}
    uncommitted = len(git.get("uncommitted", ()))
    commit = str(git.get("commit", ""))
    if commit and uncommitted:
        commit += f", with {uncommitted} uncommitted path{'s' * (uncommitted != 1)}"
    return {
        "handle": record.handle,
        "commit": commit,
        "branch": str(git.get("branch", "")),
        "code": record.code,
        "digest": record.digest or "",
        "rerun of": record.rerun_of,
        "nodes": ", ".join(map(str, details.get("addresses", ())[:_MOST_RANKS])),
        "last step": str(details.get("last_step") or ""),
        "checkpoints": str(details.get("checkpoint_dir", "")),
    }


def _percent(part: float, whole: float) -> str:
    return f"{min(100.0, max(0.0, 100 * part / whole)):.3f}"


def _cards(report: Report) -> list[dict[str, str]]:
    found = [_card("total time", seconds_text(report.end - report.begin), "from the first phase to the last")]
    if report.goodput.share is not None:
        found.append(_card("goodput", percent_text(report.goodput.share), "of the wall time"))
    for curve in report.curves[:1]:
        found.append(_card(curve.name, f"{curve.last:.4g}", f"lowest {curve.lowest:.4g}"))
    firsts = [phase for phase in report.phases if phase.name == TRAINING]
    if firsts:
        done = seconds_text(firsts[0].start - report.begin)
        found.append(_card("first step done", done, "after the first phase began"))
    for sync in report.syncs[:1]:
        step, exposed = sync.spreads["step"].median, sync.spreads["exposed"].median
        found.append(_card("step", seconds_text(step), f"median of {sync.steps} steps"))
        found.append(_card("exposed", percent_text(exposed / step), f"{seconds_text(exposed)} of a step"))
        if sync.overlap is not None:
            found.append(_card("overlap", percent_text(sync.overlap), "of the communication is hidden"))
        if sync.bandwidth:
            found.append(_card("bus bandwidth", f"{bytes_text(sync.bandwidth)}/s", f"{bytes_text(sync.size)} a step"))
    return found


def _card(label: str, value: str, more: str) -> dict[str, str]:
    return {"label": label, "value": value, "more": more}


def _goodput_view(report: Report) -> dict[str, Any] | None:
    share = report.goodput.share
    if share is None:
        return None
    rows = goodput_rows(report.goodput)
    return {"share": percent_text(share), "rows": rows, "width": _percent(share, 1.0)}


def _curve_view(curve: Curve, begin: float) -> dict[str, str]:
    y = [value for _, value in curve.points]
    low, high = min(y), max(y)
    is_log = low > 0 and high >= _DECADES * low
    cut = high if is_log or high <= low else min(high, percentile(y, _ALMOST_ALL) + (high - low) * _ROOM)
    beyond = sum(value > cut for value in y)
    first, last = curve.points[0][0], curve.points[-1][0]
    points = [(x, math.log10(value)) for x, value in curve.points] if is_log else curve.points
    return {
        "title": f"{curve.name}, {curve.who}",
        "points": _line(points, math.log10(low), math.log10(cut)) if is_log else _line(points, low, cut),
        "top": f"{cut:.4g}",
        "bottom": f"{low:.4g}",
        "first": f"step {first:g}" if curve.is_by_step else f"after {seconds_text(first - begin)}",
        "last": f"step {last:g}" if curve.is_by_step else f"after {seconds_text(last - begin)}",
        "beyond": f"{beyond} of {len(y)} values are above the chart; the highest is {high:.4g}" if beyond else "",
        "value": f"{curve.last:.4g}" + (", logarithmic scale" if is_log else ""),
    }


def _memory_view(node: NodeUse, begin: float) -> dict[str, str]:
    top = node.limit or node.peak
    return {
        "title": f"memory of node {node.node}",
        "points": _line(node.memory, 0.0, top),
        "top": bytes_text(top),
        "bottom": "0",
        "first": f"after {seconds_text(max(0.0, node.memory[0][0] - begin))}",
        "last": f"after {seconds_text(max(0.0, node.memory[-1][0] - begin))}",
        "beyond": "",
        "value": f"{bytes_text(node.peak)} at its peak",
    }


def _line(
    points: Sequence[tuple[float, float]], low: float, high: float, ends: tuple[float, float] | None = None
) -> str:
    """Return the points of a line in a box of 1000 by 100; `ends` are its left and right side."""
    first, last = ends or (points[0][0], points[-1][0])
    across, up = 1000 / ((last - first) or 1.0), 100 / ((high - low) or 1.0)
    return " ".join(f"{(x - first) * across:.1f},{100 - up * (min(high, max(low, y)) - low):.2f}" for x, y in points)


def _sync_view(sync: Sync, begin: float) -> dict[str, Any]:
    known = labels(sync)
    shown = _shown_ranks(sync)
    longest = max((rank.medians["step"] for rank in shown), default=1.0)
    medians = {name: spread.median for name, spread in sync.spreads.items()}
    return {
        "title": f"{sync.name}, timed by hand" if sync.by_hand else sync.name,
        "subtitle": facts(sync),
        "legend": [{"kind": kind, "label": known[kind]} for kind in _PARTS if kind in known],
        "parts": _parts(known, medians, medians["step"]),
        "metrics": metric_rows(sync),
        "plot": _plot(sync.step_medians, sync.timeline, begin),
        "columns": list(known.values()),
        "ranks": [_rank_view(sync, rank, known, longest) for rank in shown],
        "left_out": f"{len(shown)} of {len(sync.ranks)} ranks: those that come last most often and least often"
        if len(shown) < len(sync.ranks)
        else "",
        "buckets": [(number, bytes_text(size), seconds_text(took)) for number, size, took in sync.bucket_medians],
    }


def _shown_ranks(sync: Sync) -> Sequence[RankTimes]:
    measured = [rank for rank in sync.ranks if rank.medians]
    if len(measured) <= _MOST_RANKS:
        return measured
    ordered = sorted(measured, key=lambda rank: -rank.last)
    half = _MOST_RANKS // 2
    return sorted(ordered[:half] + ordered[-half:], key=lambda rank: rank.rank)


def _rank_view(sync: Sync, rank: RankTimes, known: Mapping[str, str], longest: float) -> dict[str, Any]:
    return {
        "name": f"rank {rank.rank}, node {rank.node}",
        "parts": _parts(known, rank.medians, longest),
        "step": seconds_text(rank.medians["step"]),
        "cells": [*(seconds_text(rank.medians[name]) for name in known), percent_text(rank.last)],
        "is_straggler": sync.straggler is not None
        and (sync.straggler.rank == rank.rank or (sync.straggler.rank is None and sync.straggler.node == rank.node)),
    }


def _parts(known: Mapping[str, str], medians: Mapping[str, float], whole: float) -> list[dict[str, str]]:
    return [
        {
            "kind": kind,
            "label": known[kind],
            "text": seconds_text(medians[kind]),
            "width": _percent(medians[kind], whole),
        }
        for kind in _PARTS
        if kind in known
    ]


def _plot(steps: Sequence[float], timeline: Sequence[tuple[float, float]], begin: float) -> dict[str, str] | None:
    """Return the line of the step times; each point is the median of as many steps as needed to fit."""
    if len(steps) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    top = min(max(steps), _TOP_OVER_P95 * percentile(steps, 0.95))
    width = math.ceil(len(steps) / _MOST_POINTS)
    points = [median(steps[start : start + width]) for start in range(0, len(steps), width)]
    across = 1000 / max(1, len(points) - 1)
    line = " ".join(f"{i * across:.1f},{100 - 100 * min(1, y / top):.2f}" for i, y in enumerate(points))
    beyond = sum(step > top for step in steps)
    return {
        "points": line,
        "top": seconds_text(top),
        "first": f"after {seconds_text(timeline[0][0] - begin)}",
        "last": f"after {seconds_text(timeline[-1][0] - begin)}",
        "beyond": f"{beyond} of {len(steps)} steps are above the top of the chart; the longest took "
        f"{seconds_text(max(steps))}"
        if beyond
        else "",
    }


def _comparison(reports: Sequence[Report], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    ids = [report.record.id for report in reports]
    return {
        "title": f"{ids[1]}, compared with {ids[0]}",
        "subtitle": "Medians over all steps of all ranks, and their ratio, second to first: below 1 the second is "
        "faster. The interval covers only the steps of these two runs; another run may differ by more.",
        "names": ids,
        "models": [{"name": _pair_name(one), "rows": ratio_rows(one)} for one in comparisons],
        "phases": phase_rows(*reports),
        "curves": [_pair_view(*pair, reports) for pair in common_curves(reports[0].curves, reports[1].curves)],
    }


def _pair_view(one: Curve, other: Curve, reports: Sequence[Report]) -> dict[str, str]:
    """Return two curves in one box: over the steps if both have them, else over the time since each job began."""
    is_by_step = one.is_by_step and other.is_by_step
    lines = [_over(curve, is_by_step, report.begin) for curve, report in zip((one, other), reports, strict=True)]
    every = [point for line in lines for point in line]
    low, high = min(y for _, y in every), max(y for _, y in every)
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    return {
        "title": one.name,
        "first": _line(lines[0], low, high, (first, last)),
        "second": _line(lines[1], low, high, (first, last)),
        "top": f"{high:.4g}",
        "bottom": f"{low:.4g}",
        "start": f"step {first:g}" if is_by_step else f"after {seconds_text(first)}",
        "end": f"step {last:g}" if is_by_step else f"after {seconds_text(last)}",
    }


def _over(curve: Curve, is_by_step: bool, begin: float) -> list[tuple[float, float]]:
    if is_by_step:
        return list(curve.points)
    return [(moment - begin, value) for moment, (_, value) in zip(curve.time_of, curve.points, strict=True)]


def _pair_name(one: Comparison) -> str:
    return one.first.name if one.first.name == one.second.name else f"{one.first.name} and {one.second.name}"
