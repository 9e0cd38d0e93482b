"""What is wrong with a training by its own figures: a loss that is NaN or does not move, steps that go back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from jobsubmit.metrics import words
from jobsubmit.metrics.collection import Metrics, Series
from jobsubmit.metrics.model import Point

_FEWEST_EQUAL = 20  # values of a loss that are the same
_MOST_NOTES = 20


def observe(metrics: Metrics) -> list[str]:
    """Return a sentence about each thing that is wrong, the lowest rank first."""
    losses = [series for series in metrics.series() if words.is_loss(series.name)]
    found = [*_not_finite(losses), *_flat(losses), *_steps_back(metrics)]
    return found[:_MOST_NOTES]


def find_loss(series: Iterable[Series]) -> Series | None:
    """Return the series that people mean by the loss: of the lowest rank, of the training rather than a validation."""
    losses = [one for one in series if words.is_loss(one.name)]
    return min(losses, key=_importance, default=None)


def _importance(series: Series) -> tuple[bool, bool]:
    return bool(words.validation_word(series.name.replace("_", " "))), series.name not in ("loss", "train_loss")


def _not_finite(losses: Iterable[Series]) -> Iterator[str]:
    for series in losses:
        bad = series.first_not_finite
        if bad is not None:
            yield f"{_named(series)} was {bad.value:g} for the first time{_at(bad)}"


def _flat(losses: Iterable[Series]) -> Iterator[str]:
    for series in losses:
        if series.equal >= _FEWEST_EQUAL and math.isfinite(series.last.value):
            value = f"{series.last.value:g} in the last {series.equal:,} values"
            yield f"{_named(series)} has been {value}: it does not move"


def _steps_back(metrics: Metrics) -> Iterator[str]:
    for (node, rank), steps in metrics.steps_back().items():
        who = f"node {node}" if rank is None else f"rank {rank}"
        for before, after in steps:
            yield f"{who}: the steps went back from {before:,} to {after:,}"


def _named(series: Series) -> str:
    node, rank = series.source
    return f"{'node ' + str(node) if rank is None else 'rank ' + str(rank)}: {series.name}"


def _at(point: Point) -> str:
    if point.step is not None:
        return f", at step {point.step:,}"
    return f", in epoch {point.epoch:g}" if point.epoch is not None else ""
