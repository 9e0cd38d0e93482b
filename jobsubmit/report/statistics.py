"""Statistics of step times: median, 95th percentile, and the interval of a ratio of two medians."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

_RESAMPLES = 1000
_MOST_VALUES = 1000
_MOST_RANKS = 8
_FEWEST_VALUES = 10  # below that an interval would only look exact


class Spread(NamedTuple):
    """Median and 95th percentile of all steps of all ranks, and the smallest and largest median of a rank."""

    median: float
    p95: float
    least_rank: float
    greatest_rank: float


class Ratio(NamedTuple):
    """The ratio of two medians, and its 95% interval over resampled steps."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure_spread(by_rank: Sequence[Sequence[float]]) -> Spread:
    """Return the spread of values given by rank; the overall median is within the range of the ranks' medians."""
    medians = [median(values) for values in by_rank if values]
    together = [value for values in by_rank for value in values]
    return Spread(median(together), percentile(together, 0.95), min(medians), max(medians))


def compare_medians(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Ratio | None:
    """Return the ratio of two medians, second to first; None for too few steps, or if the first median is zero.

    Each argument is a list of steps, and each step the values of its ranks; the medians are those of measure_spread.
    The interval is a bootstrap over blocks of neighbouring steps, which are correlated; the seed is always the same.
    """
    one, other = (median(chain.from_iterable(steps)) if any(steps) else 0.0 for steps in (first, second))
    if min(len(first), len(second)) < _FEWEST_VALUES or one <= 0:
        return None
    first, second = _thinned(first), _thinned(second)
    draw = random.Random(0)
    pairs = [(median(_drawn(first, draw)), median(_drawn(second, draw))) for _ in range(_RESAMPLES)]
    found = sorted(later / earlier if earlier else math.inf for earlier, later in pairs)
    value = other / one
    low, high = found[int(0.025 * _RESAMPLES)], found[int(0.975 * _RESAMPLES) - 1]
    return Ratio(value, min(low, value), max(high, value))


def _thinned(steps: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
    """Return fewer steps with fewer ranks each, so that they can be resampled often."""
    ranks = max(1, math.ceil(max(map(len, steps)) / _MOST_RANKS))
    few = [values[::ranks] for values in steps]
    return few[:: math.ceil(sum(map(len, few)) / _MOST_VALUES)]


def _drawn(steps: Sequence[Sequence[float]], draw: random.Random) -> list[float]:
    length = max(1, math.isqrt(len(steps)))
    found: list[Sequence[float]] = []
    while len(found) < len(steps):
        start = draw.randrange(len(steps) - length + 1)
        found += steps[start : start + length]
    return [value for values in found[: len(steps)] for value in values]
