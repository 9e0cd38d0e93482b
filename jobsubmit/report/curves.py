"""The curves of a job: what its training printed, thinned out for a page or a line of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobsubmit.metrics import words
from jobsubmit.metrics.collection import Metrics, Series

_MOST_CURVES, _MOST_POINTS = 8, 400


@dataclass(frozen=True)
class Curve:
    """The values of one name: `x` is the step if each value has a step and the steps only grow, else the time.

    `time_of` has the time of each value, in seconds since the epoch.
    """

    name: str
    who: str
    is_by_step: bool
    points: Sequence[tuple[float, float]]
    time_of: Sequence[float]
    last: float
    lowest: float
    highest: float


def find_curves(metrics: Metrics) -> tuple[Curve, ...]:
    """Return the most important curves, losses first; of a name that several ranks print, that of the lowest rank."""
    by_name: dict[str, Series] = {}
    for series in metrics.series():
        by_name.setdefault(series.name, series)
    chosen = sorted(by_name.values(), key=lambda series: _importance(series.name))[:_MOST_CURVES]
    return tuple(curve for series in chosen if (curve := _curve(series)) is not None)


def _importance(name: str) -> int:
    if words.is_loss(name):
        return 1 if words.validation_word(name.replace("_", " ")) else 0
    return 2 if words.is_result(name) else 3 if words.is_strong(name) else 4


def _curve(series: Series) -> Curve | None:
    finite = [point for point in series.points if math.isfinite(point.value)]
    if len(finite) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    every = math.ceil(len(finite) / _MOST_POINTS)
    kept = finite[::every]
    steps = [point.step for point in kept if point.step is not None]
    is_by_step = len(steps) == len(kept) and _grows(steps)
    x = [float(step) for step in steps] if is_by_step else [point.time for point in kept]
    values = [point.value for point in kept]
    node, rank = series.source
    return Curve(
        series.name,
        f"node {node}" if rank is None else f"rank {rank}",
        is_by_step,
        list(zip(x, values, strict=True)),
        [point.time for point in kept],
        series.last.value,
        min(point.value for point in finite),
        max(point.value for point in finite),
    )


def _grows(steps: Iterable[int]) -> bool:
    return all(before < after for before, after in itertools.pairwise(steps))


def common_curves(first: Sequence[Curve], second: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """Return the curves of two jobs that have the same name."""
    known = {curve.name: curve for curve in second}
    return [(curve, known[curve.name]) for curve in first if curve.name in known]
