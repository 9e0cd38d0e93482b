"""What the page of all jobs shows: a dot for each run, and a table of the ones that match."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jobsubmit.backends.models import State
from jobsubmit.common.durations import age_text, time_text
from jobsubmit.jobs.listing import Summary
from jobsubmit.report.text import seconds_text
from jobsubmit.report.training_text import left_cell, loss_cell, step_cell
from jobsubmit.report.view import ABSENT, state_kind, state_shape
from jobsubmit.ui.job_index import JobIndex

MOST_ROWS, _MOST_LINKS = 100, 120
_COLUMNS, _ROWS = 120, 12  # of the grid on which older dots are drawn
_SHORTEST, _LONGEST = 1.0, 86_400.0 * 30  # seconds, of the axis
_LEFT = 6  # percent: room for the labels of the axis
_TICKS = ((1, "1 s"), (60, "1 min"), (3600, "1 h"), (86_400, "1 d"))


class Query(NamedTuple):
    """What the reader asked for: words, a state, a backend, a span of time in seconds since the epoch, a page."""

    text: str = ""
    state: str = ""
    backend: str = ""
    since: float | None = None
    before: float | None = None
    page: int = 0

    def wants(self, job: Summary) -> bool:
        """Return whether a job matches."""
        return (
            (not self.state or job.state == self.state)
            and (not self.backend or job.backend == self.backend)
            and (self.since is None or job.created >= self.since)
            and (self.before is None or job.created < self.before)
            and all(
                word in f"{job.id} {job.name} {job.state} {job.reason} {job.message}".lower() for word in self.words
            )
        )

    @property
    def words(self) -> list[str]:
        """Return the words that a job must contain."""
        return self.text.lower().split()


class Dot(NamedTuple):
    """A run: where it is, in percent of the chart, and its kind; those without an id stand for several runs."""

    x: str
    y: str
    kind: str
    id: str = ""
    title: str = ""


class Row(NamedTuple):
    """A job in the table."""

    id: str
    name: str
    state: str
    reason: str
    kind: str
    shape: str
    message: str
    step: str
    loss: str
    left: str
    backend: str
    nodes: int
    age: str
    created: str
    took: str


@dataclass(frozen=True)
class JobsView:
    """The page of all jobs."""

    query: Query
    count: int
    matching: int
    links: tuple[Dot, ...]
    older: tuple[tuple[str, tuple[Dot, ...]], ...]  # by their kind
    ticks: tuple[tuple[str, str], ...]
    first: float
    last: float
    first_text: str
    rows: tuple[Row, ...]
    states: tuple[str, ...]
    backends: tuple[str, ...]
    next_page: int | None


def view_jobs(index: JobIndex, query: Query, now: float | None = None) -> JobsView:
    """Return the page for a query; running jobs come first, then the newest."""
    now = time.time() if now is None else now
    jobs = [job for job in index.jobs if query.wants(job)]
    ordered = sorted(jobs, key=lambda job: (State(job.state).is_final or job.state == State.UNKNOWN, -job.created))
    start = query.page * MOST_ROWS
    first = min((job.created for job in jobs), default=now)
    links, older = _dots(jobs, first, now)
    return JobsView(
        query,
        len(index.jobs),
        len(jobs),
        links,
        older,
        tuple((text, f"{_height(seconds):.1f}") for seconds, text in _TICKS),
        first,
        now,
        age_text(now - first) if jobs else "",
        tuple(_row(job, index, now) for job in ordered[start : start + MOST_ROWS]),
        tuple(sorted({job.state for job in index.jobs})),
        tuple(sorted({job.backend for job in index.jobs})),
        query.page + 1 if len(jobs) > start + MOST_ROWS else None,
    )


def _row(job: Summary, index: JobIndex, now: float) -> Row:
    training, kind = index.training(job.id), state_kind(State(job.state))
    is_over = State(job.state).is_final
    end = job.ended if is_over else now
    return Row(
        job.id,
        job.name,
        job.state,
        job.reason,
        kind,
        state_shape(kind),
        job.message if job.state not in (State.SUCCEEDED, State.RUNNING) else "",
        step_cell(training) or ABSENT,
        loss_cell(training) or ABSENT,
        (left_cell(training, now) if not is_over else "") or ABSENT,
        job.backend,
        job.nodes,
        age_text(now - job.created),
        time_text(job.created),
        seconds_text(end - job.created) if end is not None else ABSENT,
    )


def _dots(
    jobs: Sequence[Summary], first: float, now: float
) -> tuple[tuple[Dot, ...], tuple[tuple[str, tuple[Dot, ...]], ...]]:
    """Return a dot with a link for each of the newest jobs, and one for each place that older ones share."""
    links: list[Dot] = []
    cells: dict[tuple[int, int, str], Dot] = {}
    for number, job in enumerate(jobs):
        x = _LEFT + (99 - _LEFT) * (job.created - first) / max(1.0, now - first)
        seconds = (
            job.ended if job.ended is not None else now if not State(job.state).is_final else job.created
        ) - job.created
        y, kind = _height(seconds), state_kind(State(job.state))
        if number < _MOST_LINKS:
            title = (
                f"{job.id}: {job.state}{f' ({job.reason})' if job.reason else ''}, {seconds_text(max(0.0, seconds))}"
            )
            links.append(Dot(f"{x:.1f}", f"{y:.1f}", kind, job.id, title))
        else:
            place = round(x / 100 * _COLUMNS), round(y / 100 * _ROWS), kind
            cells[place] = Dot(f"{place[0] * 100 / _COLUMNS:.3g}", f"{place[1] * 100 / _ROWS:.3g}", kind)
    kinds = sorted({dot.kind for dot in cells.values()})
    older = tuple((kind, tuple(dot for dot in cells.values() if dot.kind == kind)) for kind in kinds)
    return tuple(reversed(links)), older


def _height(seconds: float) -> float:
    """Return where a duration is, in percent from the top, on a logarithmic scale."""
    clipped = min(_LONGEST, max(_SHORTEST, seconds))
    return 95 - 90 * math.log(clipped / _SHORTEST) / math.log(_LONGEST / _SHORTEST)
