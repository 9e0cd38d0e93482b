"""What is read from the output of a training: points, series, progress."""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """One printed value; `time` is in seconds since the epoch, `step` and `epoch` are those on its line, if any."""

    time: float
    epoch: float | None
    step: int | None
    value: float


class Progress(NamedTuple):
    """How far a training is, by the counters that it prints; None for what it does not print.

    `steps` is the total beside the step: of the whole training, or of one epoch if the counter starts again in each.
    """

    time: float
    step: int | None
    steps: int | None
    epoch: float | None
    epochs: int | None
