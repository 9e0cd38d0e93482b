"""Collect what is read from the output of a training: a bounded number of points of each series."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jobsubmit.metrics.model import Point, Progress
from jobsubmit.metrics.reader import MetricsReader
from jobsubmit.metrics.source_reader import Reading, Source

_MOST_POINTS, _MOST_SERIES = 10_000, 2000


@dataclass(slots=True)
class Series:
    """The values of one name that one rank printed, in order; only each `every`-th point is kept if there are many.

    `count` is how many there were, `last` is the newest; the last `equal` values are all the same.
    """

    source: Source
    name: str
    points: list[Point]
    last: Point
    count: int = 0
    every: int = 1
    equal: int = 0
    first_not_finite: Point | None = None

    def add(self, point: Point) -> None:
        """Add a point; from time to time remove every second one, so that memory is bounded.

        A point that became certain only later than a newer one is put before that one.
        """
        is_late = self.count > 0 and point.time < self.last.time
        if self.count % self.every == 0:
            if is_late:
                bisect.insort(self.points, point, key=_time_of)
            else:
                self.points.append(point)
            if len(self.points) > _MOST_POINTS:
                self.points = self.points[::2]
                self.every *= 2
        if not math.isfinite(point.value) and (
            self.first_not_finite is None or point.time < self.first_not_finite.time
        ):
            self.first_not_finite = point
        if not is_late:
            self.equal = self.equal + 1 if self.count and point.value == self.last.value else 1
            self.last = point
        self.count += 1


def _time_of(point: Point) -> float:
    return point.time


class Metrics:
    """The series and the progress of a job, as far as its lines were read; `patterns` are those of its job file."""

    def __init__(self, patterns: Mapping[str, str] = MappingProxyType({})) -> None:
        self._reader = MetricsReader(patterns)
        self._series: dict[tuple[Source, str], Series] = {}

    def read(self, source: Source, time: float, text: str) -> Iterator[Reading]:
        """Read a line of a rank or a node; yield the values that are certain since then (see MetricsReader)."""
        for reading in self._reader.read(source, time, text):
            self._add(reading)
            yield reading

    def _add(self, reading: Reading) -> None:
        source, name, point = reading
        series = self._series.get((source, name))
        if series is None:
            series = self._series[source, name] = Series(source, name, [], point)
        series.add(point)

    def add(self, source: Source, name: str, time: float, step: int, value: float) -> None:
        """Add a value that was read elsewhere than from the output."""
        point = Point(time, None, step, value)
        series = self._series.get((source, name))
        if series is None and len(self._series) < _MOST_SERIES:
            series = self._series[source, name] = Series(source, name, [], point)
        if series is not None:
            series.add(point)

    def take(self, node: int, rank: int | None, time: float, text: str) -> None:
        """Read a line, and keep what is certain since then."""
        for reading in self._reader.read((node, rank), time, text):
            self._add(reading)

    def series(self) -> list[Series]:
        """Return all series: of the lowest rank first, in the order in which they appeared."""
        return sorted(self._series.values(), key=lambda series: _order(series.source))

    def progress(self) -> Mapping[Source, Progress]:
        """Return how far each rank is that shows it, the lowest rank first."""
        return dict(sorted(self._reader.progress().items(), key=lambda item: _order(item[0])))

    def end(self) -> float | None:
        """Return when the training will end, in seconds since the epoch; None if that is unknown."""
        return self._reader.end()

    def share_done(self, source: Source) -> float | None:
        """Return the share of the training that a source of `progress` has done; None if that is unknown."""
        return self._reader.share_done(source)

    def positions(self, source: Source) -> list[tuple[float, float]]:
        """Return (time, how much was done) of each point of a source of `progress`, in steps or in epochs."""
        return self._reader.positions(source)

    def is_step_of_epoch(self, source: Source) -> bool:
        """Return whether the steps of a source of `progress` start again in each epoch."""
        return self._reader.is_step_of_epoch(source)

    def steps_back(self) -> Mapping[Source, Sequence[tuple[int, int]]]:
        """Return from where to where the steps of each source went back: at a restart."""
        return dict(sorted(self._reader.steps_back().items(), key=lambda item: _order(item[0])))


def _order(source: Source) -> tuple[bool, int, int]:
    node, rank = source
    return rank is None, rank or 0, node
