"""The texts of a report, for the terminal and the page: numbers, rows, sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jobsubmit.common.sizes import bytes_text
from jobsubmit.report.goodput import STEPS

if TYPE_CHECKING:
    from jobsubmit.report.curves import Curve
    from jobsubmit.report.goodput import Goodput
    from jobsubmit.report.job_phases import Phase
    from jobsubmit.report.model import Comparison, Report
    from jobsubmit.report.statistics import Ratio
    from jobsubmit.report.steps import Sync

_MINUTE, _HOUR = 60, 3600
_SCALE = 1000
_WORTH_A_LINE = 0.1  # seconds
_BLOCKS = "▁▂▃▄▅▆▇█"


def seconds_text(seconds: float | None) -> str:
    """Return a duration with about three digits: `812 µs`, `12.3 ms`, `4.56 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds is None:
        return "…"
    if seconds >= _HOUR:
        return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE):02} min"
    if seconds >= _MINUTE:
        return f"{int(seconds // _MINUTE)} min {int(seconds % _MINUTE):02} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds * _SCALE >= 1:
        return f"{seconds * _SCALE:.3g} ms"
    return f"{seconds * _SCALE**2:.0f} µs"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return a line of blocks that shows how values change; the highest value has the highest block."""
    each = math.ceil(len(values) / width)
    means = [statistics.fmean(values[start : start + each]) for start in range(0, len(values), each)]
    top = max(means, default=0.0) or 1.0
    return "".join(_BLOCKS[round(mean / top * (len(_BLOCKS) - 1))] for mean in means)


def percent_text(share: float | None) -> str:
    """Return a share: `12%`, `0.03%`."""
    if share is None:
        return "—"
    digits = 0 if share >= 0.1 or share == 0 else 1 if share >= 0.01 else 2  # noqa: PLR2004 - a matter of taste
    return f"{share:.{digits}%}"


def phase_name(phase: Phase) -> str:
    """Return the name of a phase: `training`, `checkpoint (restart 1, 12 times)`."""
    more = [f"restart {phase.attempt}"] if phase.attempt else []
    if len(phase.spans) > 1:
        more.append(f"{len(phase.spans)} times")
    return phase.name + (f" ({', '.join(more)})" if more else "")


_LABELS = {
    "step": "step",
    "forward": "forward",
    "backward": "loss and backward",
    "communication": "communication",
    "exposed": "exposed communication",
    "rest": "the rest: data, optimizer, …",
}


def metric_rows(sync: Sync) -> list[tuple[str, ...]]:
    """Return (label, median, 95th percentile, smallest and largest median of a rank) of each measured metric."""
    known = labels(sync)
    return [(known[name], *map(seconds_text, spread)) for name, spread in sync.spreads.items() if name in known]


def labels(sync: Sync) -> Mapping[str, str]:
    """Return the labels of the metrics of a training; one that is timed by hand has only its communication."""
    if sync.by_hand:
        return {"step": "step", "forward": "all except communication", "exposed": "communication"}
    return {**_LABELS, "rest": "the rest: other micro-batches, …"} if sync.accumulates else _LABELS


def facts(sync: Sync) -> str:
    """Return one line that describes what was measured."""
    buckets = f", in {len(sync.buckets)} buckets" if len(sync.buckets) > 1 else ""
    where = f"{sync.backend} on {sync.device}" if sync.backend else sync.device
    wire = f"; communication takes {seconds_text(sync.wire)} without waiting" if sync.wire is not None else ""
    bandwidth = f", {bytes_text(sync.bandwidth)}/s on the bus" if sync.bandwidth else ""
    overlap = f"; {percent_text(sync.overlap)} of all communication overlaps" if sync.overlap is not None else ""
    share = percent_text(sync.spreads["exposed"].median / sync.spreads["step"].median)
    ranks = f"{sync.world} rank{'s' * (sync.world != 1)}"
    exposed = f"; {share} of a step is exposed communication" if sync.world > 1 else ""
    return f"{ranks}, {where}, {bytes_text(sync.size)} a step{buckets}{exposed}{overlap}{wire}{bandwidth}"


def straggler_text(sync: Sync) -> str:
    """Return a sentence about the straggler; empty if there is none."""
    found = sync.straggler
    if found is None:
        return ""
    who = f"node {found.node}" if found.rank is None else f"rank {found.rank} (node {found.node})"
    return (
        f"{who} comes last in {percent_text(found.share)} of the steps: the others wait {seconds_text(found.cost)} for "
        f"it, {percent_text(found.cost / sync.spreads['step'].median)} of a step"
    )


def ratio_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return (label, first median, second median, ratio, interval) of each metric that both jobs have."""
    one, other = comparison.first.spreads, comparison.second.spreads
    second = labels(comparison.second)
    known = {name: label for name, label in labels(comparison.first).items() if name in second}
    return [
        (known[name], seconds_text(one[name].median), seconds_text(other[name].median), *_ratio_text(found))
        for name, found in comparison.ratios.items()
        if name in known
    ]


def phase_rows(*reports: Report) -> list[tuple[str, ...]]:
    """Return (phase, its duration in each job) of each phase that took 0.1 s or more in one of them."""
    times: dict[str, list[float]] = {}
    for index, report in enumerate(reports):
        for phase in report.phases:
            times.setdefault(phase.name, [0.0] * len(reports))[index] += phase.seconds or 0.0
    return [(name, *map(seconds_text, each)) for name, each in times.items() if max(each) >= _WORTH_A_LINE]


def goodput_rows(goodput: Goodput) -> list[tuple[str, str, str]]:
    """Return (what the time was spent on, how long, its share), the steps that counted first, then the longest."""
    rest = sorted(goodput.seconds.items(), key=lambda item: (item[0] != STEPS, -item[1]))
    kept = [(name, seconds) for name, seconds in rest if seconds >= _WORTH_A_LINE or name == STEPS]
    return [(name, seconds_text(seconds), percent_text(seconds / (goodput.total or 1))) for name, seconds in kept]


def curve_text(curve: Curve, width: int = 40) -> str:
    """Return a curve as a line of blocks, the lowest value as the lowest block; empty if it does not change."""
    values = [value for _, value in curve.points]
    low = min(values)
    return sparkline([value - low for value in values], width) if max(values) > low else ""


def _ratio_text(found: Ratio) -> tuple[str, str]:
    return f"{found.value:.2f}", f"{found.low:.2f} to {found.high:.2f}"
