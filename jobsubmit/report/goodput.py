"""Goodput: which share of a job's wall time was training steps that counted, and where the rest went.

Each moment belongs to one thing. A step counts unless a later attempt did it again. Without counters in the output or
timed steps, the whole training phase counts, and a note says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jobsubmit.report.job_phases import CHECKPOINT, TRAINING, Phase

STEPS, AGAIN, HANG, RESTART, OTHER = "training steps", "steps done again", "hang", "restart", "other"
BEFORE_STEPS = "before first step"
_SHORTEST_HANG = 1.0  # seconds


class Position(NamedTuple):
    """A step that was done at a time, of all attempts in order of time."""

    time: float
    step: float


@dataclass(frozen=True)
class Goodput:
    """Seconds of a job's wall time by what they were spent on, the steps that counted first.

    `knows_steps` is False if the output shows no steps: then all of the training counts.
    """

    seconds: Mapping[str, float]
    knows_steps: bool

    @property
    def total(self) -> float:
        """Return the wall time of the job."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """Return which share of the wall time was steps that counted, from 0 to 1; None if the job took no time."""
        return self.seconds.get(STEPS, 0.0) / self.total if self.total > 0 else None


class _Span(NamedTuple):
    start: float
    end: float
    name: str
    rank: int  # of two spans, the one with the higher rank has the time in which they overlap


class _Training(NamedTuple):
    """The training phase of an attempt, its steps, and when the output is no longer that of this attempt."""

    span: _Span
    steps: Sequence[Position]
    until: float


def measure_goodput(
    phases: Sequence[Phase], positions: Sequence[Position], *, begin: float, end: float, hung: Iterable[float] = ()
) -> Goodput:
    """Return where the time from `begin` to `end` went; `hung` are the times at which a hang was detected."""
    spans = [
        _Span(start, min(end, stop if stop is not None else end), *_kind(phase.name))
        for phase in phases
        for start, stop in phase.spans
    ]
    spans += _between_attempts(phases, end)
    trainings = _trainings([span for span in spans if span.name == STEPS], positions)
    for index, training in enumerate(trainings):
        spans += _before_first_step(training)
        spans += _hang(training, hung)
        later = [position.step for other in trainings[index + 1 :] for position in other.steps]
        spans += _done_again(training, min(later, default=None))
    return Goodput(_sweep(spans, begin, end), any(training.steps for training in trainings))


def _kind(name: str) -> tuple[str, int]:
    if name == TRAINING:
        return STEPS, 2
    if name == CHECKPOINT:
        return CHECKPOINT, 5
    return ("first output" if name == "first_output" else name), 1


def _between_attempts(phases: Sequence[Phase], end: float) -> list[_Span]:
    """Return the time from the end of each attempt to the first phase of the next one."""
    found = []
    numbers = sorted({phase.attempt for phase in phases})
    for number, following in itertools.pairwise(numbers):
        ends = [stop or end for phase in phases if phase.attempt == number for _, stop in phase.spans]
        start = min(phase.start for phase in phases if phase.attempt == following)
        if max(ends) < start:
            found.append(_Span(max(ends), start, RESTART, 0))
    return found


def _trainings(spans: Sequence[_Span], positions: Sequence[Position]) -> list[_Training]:
    """Return the training phases, each with the steps at which it went on.

    A line is read a little after it was printed, so a step may stand after the end of its phase.
    """
    limits = [(before.end + after.start) / 2 for before, after in itertools.pairwise(spans)]
    found = []
    for span, since, until in zip(spans, [-math.inf, *limits], [*limits, math.inf], strict=False):
        own: list[Position] = []
        for position in positions:
            if since < position.time <= until and (not own or position.step > own[-1].step):
                own.append(position)
        found.append(_Training(span, own, until))
    return found


def _pace(own: Sequence[Position]) -> float | None:
    """Return the seconds of a step, without the pauses."""
    pairs = itertools.pairwise(own)
    paces = sorted((after.time - before.time) / (after.step - before.step) for before, after in pairs)
    return paces[len(paces) // 2] if paces else None


def _before_first_step(training: _Training) -> list[_Span]:
    """Return the time before the first step began: a training prints before it trains."""
    span, own = training.span, training.steps
    pace = _pace(own)
    if pace is None:
        return []
    every = own[1].step - own[0].step
    start = own[0].time - pace * min(max(1.0, own[0].step), every)
    return [_Span(span.start, start, BEFORE_STEPS, 3)] if span.start < start < span.end else []


def _hang(training: _Training, hung: Iterable[float]) -> list[_Span]:
    """Return the time from the last step to the moment at which the hang was detected, or the attempt ended."""
    span, own = training.span, training.steps
    last = own[-1].time if own else span.start
    moments = [moment for moment in hung if last + _SHORTEST_HANG < moment <= training.until]
    return [_Span(last, max(span.end, *moments), HANG, 6)] if moments else []


def _done_again(training: _Training, later: float | None) -> list[_Span]:
    """Return the time of the steps that a later attempt did again: from the end of the last one that it kept."""
    span, own = training.span, training.steps
    pace = _pace(own)
    if later is None or pace is None or own[-1].step < later:
        return []
    kept = [position for position in own if position.step < later]
    start = kept[-1].time + pace * max(0.0, later - 1 - kept[-1].step) if kept else own[0].time - pace
    return [_Span(max(span.start, start), span.end, AGAIN, 4)]


def _sweep(spans: Sequence[_Span], begin: float, end: float) -> dict[str, float]:
    """Return the seconds of each name; where spans overlap, the one with the highest rank has the time."""
    edges = sorted({begin, end, *(min(end, max(begin, moment)) for span in spans for moment in span[:2])})
    waiting = sorted(spans, key=lambda span: span.start, reverse=True)
    found: dict[str, float] = {STEPS: 0.0}
    active: list[_Span] = []
    for start, stop in itertools.pairwise(edges):
        while waiting and waiting[-1].start <= start:
            active.append(waiting.pop())
        active = [span for span in active if span.end >= stop]
        name = max(active, key=lambda span: (span.rank, span.start)).name if active else OTHER
        found[name] = found.get(name, 0.0) + stop - start
    return found
