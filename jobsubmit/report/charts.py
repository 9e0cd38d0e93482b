"""Lines and bars of a page as SVG geometry: each box is 1000 units wide and 100 high, and stretched by the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from jobsubmit.common.sizes import bytes_text
from jobsubmit.report.curves import Curve
from jobsubmit.report.machine_use import NodeUse
from jobsubmit.report.statistics import percentile
from jobsubmit.report.text import seconds_text

WIDTH, HEIGHT = 1000.0, 100.0
_DECADES = 100  # the highest value is so many times the lowest: a linear scale would show one of them only
_ALMOST_ALL, _ROOM = 0.98, 0.05
_TICKS = 4
_THOUSAND, _TEN_MILLION = 1e3, 1e7
_MOST_SHOWN = 200  # points that a page can name
_MOST_ROWS = 12  # of the table beside a chart

Points: TypeAlias = Sequence[tuple[float, float]]
_Point = TypeVar("_Point")


@dataclass(frozen=True)
class Line:
    """One line of a chart: `kind` is its number, which its colour and dashes follow."""

    name: str
    kind: int
    points: str


@dataclass(frozen=True)
class Chart:
    """A chart: `ticks` are the labels of the axis from the top down, `rows` the same values as text.

    `x_values` and `y_values` are what a page shows where the reader points; one list of values for each line.
    `breaks` are where the job was restarted, from 0 to WIDTH.
    """

    title: str
    value: str
    lines: tuple[Line, ...]
    ticks: tuple[str, ...]
    first: str
    last: str
    note: str = ""
    unit: str = ""
    breaks: tuple[str, ...] = ()
    x_values: tuple[str, ...] = ()
    y_values: tuple[tuple[str, ...], ...] = ()

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return some of the values as rows of a table: the position, then the value of each line."""
        every = max(1, math.ceil(len(self.x_values) / _MOST_ROWS))
        columns = [self.x_values[::every], *(values[::every] for values in self.y_values)]
        return list(zip(*columns, strict=True))


def number_text(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits; from a thousand on with separators."""
    return f"{value:,.0f}" if _THOUSAND <= abs(value) < _TEN_MILLION else f"{value:.{digits}g}"


def percent(part: float, whole: float) -> str:
    """Return a share as a length of a box, from 0 to WIDTH."""
    return f"{min(WIDTH, max(0.0, WIDTH * part / (whole or 1.0))):.1f}"


def draw_curve(curve: Curve, begin: float, restarts: Sequence[float] = ()) -> Chart:
    """Return the chart of a curve; `begin` is when the job began, `restarts` are the times of its restarts."""
    values = [value for _, value in curve.points]
    low, high = min(values), max(values)
    is_log = low > 0 and high >= _DECADES * low
    cut = high if is_log or high <= low else min(high, percentile(values, _ALMOST_ALL) + (high - low) * _ROOM)
    beyond = sum(value > cut for value in values)
    ends = curve.points[0][0], curve.points[-1][0]
    steps = [_position(moment, curve.time_of) for moment in restarts if curve.time_of[0] < moment < curve.time_of[-1]]
    shown = _thinned(list(zip(curve.points, curve.time_of, strict=True)))
    who = [f"{x:g}" if curve.is_by_step else seconds_text(moment - begin) for (x, _), moment in shown]
    return Chart(
        curve.name,
        number_text(curve.last),
        (Line(curve.name, 0, _line(curve.points, low, cut, ends, is_log=is_log)),),
        _ticks(low, cut, is_log=is_log),
        *_ends(curve, begin),
        f"{beyond} of {len(values)} values are above the chart; the highest is {number_text(high)}" if beyond else "",
        f"{curve.who}, logarithmic scale" if is_log else curve.who,
        tuple(percent(curve.points[place][0] - ends[0], ends[1] - ends[0]) for place in steps),
        tuple(who),
        (tuple(number_text(value) for (_, value), _ in shown),),
    )


def draw_pair(pairs: Sequence[tuple[str, Curve, float]], *, by_time: bool = False) -> Chart:
    """Return the curves of several jobs in one chart, as (job, curve, when the job began).

    They are drawn over the time since each job began if `by_time` or if one of them has no steps, else over the steps.
    """
    is_by_step = not by_time and all(curve.is_by_step for _, curve, _ in pairs)
    lines = [list(curve.points) if is_by_step else _over_time(curve, begin) for _, curve, begin in pairs]
    every = [point for line in lines for point in line]
    low, high = min(y for _, y in every), max(y for _, y in every)
    ends = min(x for x, _ in every), max(x for x, _ in every)
    is_log = low > 0 and high >= _DECADES * low
    first, last = (f"step {x:g}" if is_by_step else f"after {seconds_text(x)}" for x in ends)
    return Chart(
        pairs[0][1].name,
        " · ".join(number_text(curve.last) for _, curve, _ in pairs),
        tuple(
            Line(name, kind, _line(line, low, high, ends, is_log=is_log))
            for kind, ((name, _, _), line) in enumerate(zip(pairs, lines, strict=True))
        ),
        _ticks(low, high, is_log=is_log),
        first,
        last,
        unit="logarithmic scale" if is_log else "",
    )


def draw_memory(node: NodeUse, begin: float) -> Chart:
    """Return the chart of a node's memory, up to its limit if it has one."""
    top = node.limit or node.peak or 1.0
    ends = node.memory[0][0], node.memory[-1][0]
    first, last = (f"after {seconds_text(max(0.0, moment - begin))}" for moment in ends)
    shown = _thinned(node.memory)
    return Chart(
        f"memory of node {node.node}",
        bytes_text(node.peak),
        (Line("memory", 0, _line(node.memory, 0.0, top, ends)),),
        tuple(bytes_text(top * (_TICKS - 1 - number) / (_TICKS - 1)) for number in range(_TICKS)),
        first,
        last,
        unit="at its peak",
        x_values=tuple(seconds_text(max(0.0, moment - begin)) for moment, _ in shown),
        y_values=(tuple(bytes_text(size) for _, size in shown),),
    )


def draw_steps(steps: Points, begin: float) -> Chart | None:
    """Return the chart of (end, duration) of the steps; None if there are fewer than two."""
    if len(steps) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    durations = [seconds for _, seconds in steps]
    top = min(max(durations), 2 * percentile(durations, 0.95)) or 1.0
    beyond = sum(seconds > top for seconds in durations)
    points = _thinned([(float(number), seconds) for number, seconds in enumerate(durations)], 400)
    longest = seconds_text(max(durations))
    first, last = (f"after {seconds_text(moment - begin)}" for moment in (steps[0][0], steps[-1][0]))
    return Chart(
        "step time over the run",
        "",
        (Line("step", 0, _line(points, 0.0, top, (0.0, float(len(durations) - 1)))),),
        tuple(seconds_text(top * (_TICKS - 1 - number) / (_TICKS - 1)) for number in range(_TICKS)),
        first,
        last,
        f"{beyond} of {len(durations)} steps are above the top of the chart; the longest took {longest}"
        if beyond
        else "",
    )


def _line(points: Points, low: float, high: float, ends: tuple[float, float], *, is_log: bool = False) -> str:
    if is_log:
        points = [(x, math.log10(y)) for x, y in points]
        low, high = math.log10(low), math.log10(high)
    across, up = WIDTH / ((ends[1] - ends[0]) or 1.0), HEIGHT / ((high - low) or 1.0)
    return " ".join(
        f"{(x - ends[0]) * across:.1f},{HEIGHT - up * (min(high, max(low, y)) - low):.1f}" for x, y in points
    )


def _ticks(low: float, high: float, *, is_log: bool) -> tuple[str, ...]:
    shares = [(_TICKS - 1 - number) / (_TICKS - 1) for number in range(_TICKS)]
    if is_log:
        return tuple(number_text(low * (high / low) ** share, 3) for share in shares)
    return tuple(number_text(low + (high - low) * share, 3) for share in shares)


def _ends(curve: Curve, begin: float) -> tuple[str, str]:
    first, last = curve.points[0][0], curve.points[-1][0]
    if curve.is_by_step:
        return f"step {first:g}", f"step {last:g}"
    return f"after {seconds_text(first - begin)}", f"after {seconds_text(last - begin)}"


def _position(moment: float, times: Sequence[float]) -> int:
    return next(place for place, time in enumerate(times) if time >= moment)


def _over_time(curve: Curve, begin: float) -> list[tuple[float, float]]:
    return [(moment - begin, value) for moment, (_, value) in zip(curve.time_of, curve.points, strict=True)]


def _thinned(points: Sequence[_Point], most: int = _MOST_SHOWN) -> Sequence[_Point]:
    return points[:: max(1, math.ceil(len(points) / most))]
