"""How values lie: median, 95th percentile, and the interval of a ratio of two medians."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

_RESAMPLES = 1000
_MOST_VALUES = 1000


class Spread(NamedTuple):
    """Hold median and 95th percentile over steps, and the least and the greatest median of a rank."""

    median: float
    p95: float
    least_rank: float
    greatest_rank: float


class Ratio(NamedTuple):
    """Hold the ratio of two medians, and the interval that holds 95% of it when the steps are drawn again."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(by_rank: Sequence[Sequence[float]]) -> Spread | None:
    """Return how the values of all ranks lie, each given with its steps; None where there are none."""
    medians = [median(values) for values in by_rank if values]
    everything = [value for values in by_rank for value in values]
    if not everything:
        return None
    return Spread(median(everything), percentile(everything, 0.95), min(medians), max(medians))


def ratio(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """Return median(second) / median(first); None where that says nothing.

    The interval is a bootstrap over blocks of neighbouring steps, for neighbours are alike; always with the same seed.
    """
    if not first or not second or median(first) <= 0:
        return None
    first, second = _thinned(first), _thinned(second)
    draw = random.Random(0)
    found = sorted(median(_drawn(second, draw)) / median(_drawn(first, draw)) for _ in range(_RESAMPLES))
    low, high = found[int(0.025 * _RESAMPLES)], found[int(0.975 * _RESAMPLES) - 1]
    return Ratio(median(second) / median(first), low, high)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    return values[:: math.ceil(len(values) / _MOST_VALUES)]


def _drawn(values: Sequence[float], draw: random.Random) -> list[float]:
    length = max(1, math.isqrt(len(values)))
    found: list[float] = []
    while len(found) < len(values):
        start = draw.randrange(len(values) - length + 1)
        found += values[start : start + length]
    return found[: len(values)]
