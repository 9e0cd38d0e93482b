"""Collect what is read from the output of a training: a bounded number of points of each series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jobsubmit.metrics.model import Point, Progress
from jobsubmit.metrics.reader import MetricsReader, Reading, Source

_MOST_POINTS = 10_000


@dataclass
class Series:
    """The values of one name that one rank printed, in order; only each `every`-th point is kept if there are many.

    `count` is how many there were, `last` is the newest.
    """

    source: Source
    name: str
    points: list[Point]
    last: Point
    count: int = 0
    every: int = 1

    def add(self, point: Point) -> None:
        """Add a point; from time to time remove every second one, so that memory is bounded."""
        if self.count % self.every == 0:
            self.points.append(point)
            if len(self.points) > _MOST_POINTS:
                self.points = self.points[::2]
                self.every *= 2
        self.count += 1
        self.last = point


class Metrics:
    """The series and the progress of a job, as far as its lines were read."""

    def __init__(self) -> None:
        self._reader = MetricsReader()
        self._series: dict[tuple[Source, str], Series] = {}

    def read(self, source: Source, time: float, text: str) -> Iterator[Reading]:
        """Read a line of a rank or a node; yield the values that are certain since then (see MetricsReader)."""
        for reading in self._reader.read(source, time, text):
            key = (reading.source, reading.name)
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = Series(*key, [], reading.point)
            series.add(reading.point)
            yield reading

    def series(self) -> list[Series]:
        """Return all series: of the lowest rank first, in the order in which they appeared."""
        return sorted(self._series.values(), key=lambda series: _order(series.source))

    def progress(self) -> Mapping[Source, Progress]:
        """Return how far each rank is that shows it, the lowest rank first."""
        return dict(sorted(self._reader.progress().items(), key=lambda item: _order(item[0])))


def _order(source: Source) -> tuple[bool, int, int]:
    node, rank = source
    return rank is None, rank or 0, node
