"""The metrics of a job."""

from __future__ import annotations

from typing import Literal

from jobsubmit.cli.documents.base import Document


class MetricPoint(Document):
    """A value that a rank printed."""

    time: str
    """When it was printed: ISO 8601 in UTC, to the millisecond."""
    epoch: float | None
    """The epoch on the same line; null if the line shows none."""
    step: int | None
    """The step on the same line: of the whole training, or within the epoch if the program counts that way."""
    value: float | Literal["nan", "inf", "-inf"]


class MetricSeries(Document):
    """The values of one name that one rank printed."""

    node: int
    rank: int | None
    """Null for what a node prints before and around its ranks."""
    name: str
    """The name as printed, in lower case; `val_` or the like before it if the line is about validation."""
    count: int
    """How many values were printed."""
    every: int
    """1, or more if the series is so long that only each such value is listed."""
    points: list[MetricPoint]


class MetricProgress(Document):
    """How far a rank is, by the counters that it prints."""

    node: int
    rank: int | None
    time: str
    """When the counters were printed last."""
    step: int | None
    steps: int | None
    """The total beside the step: of the training, or of one epoch if the counter starts again in each."""
    epoch: float | None
    epochs: int | None


class MetricsDocument(Document):
    """What a training prints about itself."""

    id: str
    progress: list[MetricProgress]
    series: list[MetricSeries]
    ends: str | None
    """When the training will end at its pace so far: ISO 8601 in UTC; null if that is unknown, or the job has ended."""
    notes: list[str]
    """What is wrong: a loss that is not a number or does not move, steps that went back."""
