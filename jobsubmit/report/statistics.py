"""How values lie: median, 95th percentile, and the interval of a ratio of two medians."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

_RESAMPLES = 1000
_MOST_VALUES = 1000
_FEWEST_VALUES = 10  # below that an interval would only look exact


class Spread(NamedTuple):
    """Median and 95th percentile of the steps' means over all ranks, and the least and greatest rank's median."""

    median: float
    p95: float
    least_rank: float
    greatest_rank: float


class Ratio(NamedTuple):
    """The ratio of two medians, and the interval that holds 95% of it when the steps are drawn again."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure_spread(by_step: Sequence[float], by_rank: Sequence[Sequence[float]]) -> Spread:
    """Return how values lie, given as each step's mean, and as each rank's own."""
    medians = [median(values) for values in by_rank if values]
    return Spread(median(by_step), percentile(by_step, 0.95), min(medians), max(medians))


def compare_medians(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """Return median(second) / median(first); None where there are too few steps, or the first takes no time.

    The interval is a bootstrap over blocks of neighbouring steps, for neighbours are alike; always with the same seed.
    """
    if min(len(first), len(second)) < _FEWEST_VALUES or median(first) <= 0:
        return None
    first, second = _thinned(first), _thinned(second)
    draw = random.Random(0)
    pairs = [(median(_drawn(first, draw)), median(_drawn(second, draw))) for _ in range(_RESAMPLES)]
    found = sorted(other / one if one else math.inf for one, other in pairs)
    value = median(second) / median(first) if median(first) else math.inf
    return Ratio(value, found[int(0.025 * _RESAMPLES)], found[int(0.975 * _RESAMPLES) - 1])


def _thinned(values: Sequence[float]) -> Sequence[float]:
    return values[:: math.ceil(len(values) / _MOST_VALUES)]


def _drawn(values: Sequence[float], draw: random.Random) -> list[float]:
    length = max(1, math.isqrt(len(values)))
    found: list[float] = []
    while len(found) < len(values):
        start = draw.randrange(len(values) - length + 1)
        found += values[start : start + length]
    return found[: len(values)]
