"""Estimate when a training ends, from the times at which it printed its counters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from jobsubmit.metrics.model import Progress

_MOST_POINTS = 2000
_MOST_STEPS_BACK = 5
_FEWEST_POINTS = 3
_SLOW = 1.5  # times the usual pace: a step of the warm-up
_MOST_WARM_UP = 0.5  # of all points
_WHOLE_EPOCHS = 2  # so many starts of an epoch show how long one takes


class _Point(NamedTuple):
    """The counters at a time; `is_end` if the line shows figures beside them: then what they count is done."""

    time: float
    step: int | None
    steps: int | None
    epoch: float | None
    is_end: bool


class _Position(NamedTuple):
    time: float
    done: float


class Pace:
    """How fast one rank goes: a bounded number of points, the newest included."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._every = 1
        self._count = 0
        self._resets = self._runs_on = 0
        self._last: _Point | None = None
        self._last_with_step: _Point | None = None
        self._highest_of_epoch: _Point | None = None
        self._steps_of_epoch: int | None = None
        self._lowest_epoch: float | None = None
        self._has_fractions = False
        self.steps_back: list[tuple[int, int]] = []  # from, to: the first ones

    def add(self, progress: Progress, step: int | None, *, is_end: bool) -> None:
        """Take a position of the training; `step` is None if its line shows none."""
        point = _Point(progress.time, step, progress.steps, progress.epoch, is_end)
        if point.epoch is not None:
            self._notice_epoch(point)
        if step is not None:
            self._notice_step_back(point)
        self._last = point
        if point.step is not None:
            self._last_with_step = point
        if self._count % self._every == 0:
            self._points.append(point)
            if len(self._points) > _MOST_POINTS:
                self._points = self._points[::2]
                self._every *= 2
        self._count += 1

    def _notice_epoch(self, point: _Point) -> None:
        """Notice whether the step counter starts again in each epoch, or runs on."""
        if point.epoch is None:
            return
        self._has_fractions = self._has_fractions or point.epoch != int(point.epoch)
        self._lowest_epoch = point.epoch if self._lowest_epoch is None else min(self._lowest_epoch, point.epoch)
        last = self._highest_of_epoch
        if point.step is None:
            return
        if last is None or last.epoch is None or last.step is None or last.steps != point.steps:
            self._highest_of_epoch = point
        elif point.epoch > last.epoch:
            self._compare_epochs(last.step, point.step, point.epoch)
            self._highest_of_epoch = point
        elif point.step > last.step:
            self._highest_of_epoch = point

    def _compare_epochs(self, highest: int, step: int, epoch: float) -> None:
        """Take the highest step of an epoch, and the first one of the next."""
        if step < highest:
            self._resets += 1
            self._steps_of_epoch = max(self._steps_of_epoch or 0, highest)
        elif step > highest:
            self._runs_on += 1
            done = epoch - (1.0 if (self._lowest_epoch or 0.0) >= 1 else 0.0)
            self._steps_of_epoch = round((highest + step) / 2 / max(1.0, done))

    def _notice_step_back(self, point: _Point) -> None:
        last = self._last_with_step
        if last is None or last.step is None or point.step is None or point.step >= last.step:
            return
        is_new_epoch = point.epoch is not None and (last.epoch is None or point.epoch > last.epoch)
        is_other_counter = point.epoch is None and point.step <= 1
        if not is_new_epoch and not is_other_counter and len(self.steps_back) < _MOST_STEPS_BACK:
            self.steps_back.append((last.step, point.step))

    def end(self, progress: Progress) -> float | None:
        """Return when the training will end, in seconds since the epoch; None if that is unknown.

        `progress` is the newest position, with the totals that are known.
        """
        total = self._total(progress)
        if total is None:
            return None
        positions = self._positions(progress)
        starts = _epoch_starts(positions) if total == progress.epochs else []
        return _by_whole_epochs(starts, total) if len(starts) > _WHOLE_EPOCHS else _extrapolate(positions, total)

    def share(self, progress: Progress) -> float | None:
        """Return the share of the training that is done, from 0 to 1; None if that is unknown."""
        total = self._total(progress)
        positions = self._positions(progress)[-1:] if total else []
        return min(1.0, positions[0].done / total) if total and positions else None

    def positions(self, progress: Progress) -> list[tuple[float, float]]:
        """Return (time, how much was done) of each point; how much counts steps, or epochs where no step runs on."""
        return [(position.time, position.done) for position in self._positions(progress)]

    def is_step_of_epoch(self, progress: Progress) -> bool:
        """Return whether the steps start again in each epoch, and so the total beside the step is that of an epoch."""
        if self._has_fractions:
            return False
        if self._resets or self._runs_on:
            return self._resets > self._runs_on
        return progress.epoch is not None

    def _counts_steps(self, progress: Progress) -> bool:
        """Return whether the steps run on from the first to the last of the training, as far as that is known."""
        if self.is_step_of_epoch(progress) or self._last_with_step is None:
            return False
        return bool(progress.steps or self._steps_of_epoch or not progress.epochs)

    def _total(self, progress: Progress) -> float | None:
        """Return the number of steps of the whole training if the step runs on, else of epochs."""
        if self.is_step_of_epoch(progress):
            total = progress.epochs
        elif self._runs_on and not progress.steps and self._steps_of_epoch and progress.epochs:
            total = self._steps_of_epoch * progress.epochs
        else:
            total = progress.steps or progress.epochs
        return float(total) if total else None

    def _positions(self, progress: Progress) -> list[_Position]:
        """Return how much was done and when, in the unit of the total."""
        if self._counts_steps(progress):
            own = [point for point in self._all() if point.steps in (None, progress.steps)]
            return [_Position(point.time, float(point.step)) for point in own if point.step is not None]
        steps = (progress.steps or self._steps_of_epoch) if self.is_step_of_epoch(progress) else None
        base = 1.0 if (self._lowest_epoch or 0.0) >= 1 and not self._has_fractions else 0.0
        found = []
        before: _Point | None = None
        for point in self._all():
            if point.epoch is None or (steps and (point.step is None or point.steps not in (None, steps))):
                continue
            if steps and before is not None and point.epoch == before.epoch and (point.step or 0) < (before.step or 0):
                continue  # the first bar of the next epoch, drawn before the line that names it
            before = point
            done = point.epoch - base
            if steps and point.step is not None:
                done += min(1.0, point.step / steps)
            elif point.is_end and not self._has_fractions:
                done += 1.0
            found.append(_Position(point.time, done))
        return found

    def _all(self) -> list[_Point]:
        last = self._last
        return [*self._points, last] if last is not None and self._points[-1] is not last else self._points


def _epoch_starts(positions: Iterable[_Position]) -> list[_Position]:
    """Return the first position of each epoch that was seen from its beginning."""
    found: list[_Position] = []
    last: _Position | None = None
    for position in positions:
        if last is not None and int(position.done) == int(last.done) + 1:
            found.append(position)
        elif last is not None and position.done < last.done:
            found.clear()
        last = position
    return found


def _by_whole_epochs(starts: Sequence[_Position], total: float) -> float:
    """Extrapolate from the starts of epochs, so that the pause after each one counts."""
    first, last = starts[0], starts[-1]
    return last.time + (last.time - first.time) / (last.done - first.done) * (total - last.done)


def _extrapolate(positions: Sequence[_Position], total: float) -> float | None:
    """Return when `total` is reached at the mean pace so far, without the warm-up and the time between attempts."""
    stretches: list[tuple[float, float]] = []  # seconds and progress between two points
    for before, after in itertools.pairwise(positions):
        if after.done < before.done:
            stretches.append((0.0, 0.0))  # a restart: what follows may warm up again
        elif after.done > before.done or stretches:
            stretches.append((after.time - before.time, after.done - before.done))
    paces = [seconds / done for seconds, done in stretches if done > 0]
    if not positions or len(paces) < _FEWEST_POINTS - 1:
        return None
    usual = median(paces)
    most = len(stretches) * _MOST_WARM_UP
    warm_up = itertools.takewhile(lambda stretch: stretch[1] <= 0 or stretch[0] / stretch[1] > usual * _SLOW, stretches)
    stretches = stretches[int(min(most, len(list(warm_up)))) :]
    seconds, done = sum(s for s, _ in stretches), sum(d for _, d in stretches)
    last = positions[-1]
    return last.time + seconds / done * max(0.0, total - last.done) if done > 0 else None
