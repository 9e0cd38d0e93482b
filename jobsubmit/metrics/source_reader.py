"""Read the metrics of a training from the lines that one rank or node prints."""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from jobsubmit.metrics import words
from jobsubmit.metrics.configured_totals import ConfiguredTotals
from jobsubmit.metrics.line_plan import Figure, LinePlan, plan_line
from jobsubmit.metrics.model import Point, Progress
from jobsubmit.metrics.own_patterns import COUNTERS
from jobsubmit.metrics.table import Row
from jobsubmit.metrics.template import pattern_of, split_line
from jobsubmit.metrics.time_left import Pace

Source: TypeAlias = tuple[int, int | None]
"""Who printed a line: node and rank; the rank is None for a line of the node itself."""

_MOST_PENDING = 2000
_MOST_NAMES = 100
_OFTEN = 2
_MANY = 4
_MOST_HELD = 50
_MOST_BELOW = 8  # lines from a headline, or from a line below it, to the next line of its block
_MOST_COUNTED = 10**12
_FINAL_HEAD, _FINAL_ROW = re.compile(r"\*{5} \w+ metrics \*{5}"), re.compile(r"  \w+ +=")
_WHEN_LEARNED, _MOST_PATTERNS = (16, 64, 256, 1024), 12


class Reading(NamedTuple):
    """One value of a series: who printed it, its name, and the point."""

    source: Source
    name: str
    point: Point


class _Headline(NamedTuple):
    """A line that says of which step and epoch the lines below it are, and perhaps of which validation.

    If it `has_results` of its own, only a validation below it is of the same epoch. The word of a title counts for the
    next line as well if that is not indented.
    """

    line: int
    step: float | None
    epoch: float | None
    word: str
    has_results: bool = False
    is_title: bool = False


class SourceReader:
    """Reads the lines of one rank or node."""

    def __init__(self, source: Source, configured: ConfiguredTotals) -> None:
        self.source, self.configured = source, configured
        self.is_training = False
        self.progress: Progress | None = None
        self.total_steps: int | None = None
        self.total_epochs: int | None = None
        self.pending: deque[Reading] = deque(maxlen=_MOST_PENDING)
        self.held: dict[tuple[str, ...], _Held] = {}  # lines that are not certain yet, by the names on them
        self.names: set[str] = set()
        self.certain: set[str] = set()  # of them those that stood beside a counter and a result
        # Lines that certainly belong to the training, and their figures:
        self.familiar: dict[LinePlan, list[Figure]] = {}
        self.patterns: list[tuple[re.Pattern[str], LinePlan]] = []  # of those that come often
        self.times: Counter[LinePlan] = Counter()
        self.is_in_final_table = False
        self.results = 0  # lines of a training with a counter and a result
        self.lines_count_steps = False
        self.first_batch: tuple[float, float | None] | None = None
        self.is_epoch_first = False
        self.columns: tuple[str, ...] = ()  # of the table whose rows are printed now
        self.lines = 0
        self.headline: _Headline | None = None
        self.epoch_of_headline: float | None = None  # of `Epoch 3/10`: lines that count steps are of this epoch
        self.bar_total: int | None = None
        self.pace = Pace()

    def end(self) -> float | None:
        """Return when the training of this rank will end, in seconds since the epoch; None if that is unknown."""
        return self.pace.end(self.with_totals(self.progress)) if self.progress is not None else None

    def is_of_final_table(self, text: str) -> bool:
        """Return whether a line is of a table with the final figures, as a Hugging Face Trainer prints it."""
        is_row = self.is_in_final_table and _FINAL_ROW.match(text) is not None
        self.is_in_final_table = is_row or _FINAL_HEAD.match(text) is not None
        return self.is_in_final_table

    def learn(self, plan: LinePlan, text: str) -> None:
        """Remember what the lines of a plan look like, once there were some that match no pattern yet."""
        self.times[plan] += 1
        is_time = self.times[plan] in _WHEN_LEARNED and len(self.patterns) < _MOST_PATTERNS
        if is_time and (pattern := pattern_of(text)):
            self.patterns.append((pattern, plan))

    def take(self, plan: LinePlan, numbers: Sequence[float], time: float) -> Sequence[Reading]:
        """Take a line; return what is certain now."""
        if plan.is_about_something_else:
            return ()
        prefix = self._prefix(plan)
        step, epoch = self._counters(plan, numbers)
        if plan.is_batch and step is not None:
            self._compare_batches(step, _counter(plan.steps, numbers))
            if self.is_epoch_first:
                step, epoch = _counter(plan.steps, numbers), step
        has_counter = (step is not None or epoch is not None) and (not plan.is_bar or plan.is_strong)
        familiar = self.familiar.get(plan) if has_counter else None
        if familiar is not None:
            readings = self._values(familiar, numbers, time, step, epoch, prefix)
        else:
            readings = self._new_readings(plan, numbers, time, step, epoch, has_counter, prefix)
            self.total_steps = _whole(_counter(plan.total_steps, numbers)) or self.total_steps
            self.total_epochs = _whole(_counter(plan.total_epochs, numbers)) or self.total_epochs
        self._remember_headline(plan, step, epoch)
        if not plan.is_validation:
            if readings or plan.is_headline:
                self._advance(plan, numbers, time, step, epoch)
            if not self.is_training and self._shows_training(readings, has_counter):
                self.is_training = True
                readings = [*self._held_before(readings), *readings]
        return self._published(readings)

    def take_title(self, word: str) -> None:
        """Take a line that says which validation the next line is about, as `valid result:`."""
        known = self.headline or self.progress
        if known is not None:
            self.headline = _Headline(self.lines, known.step, known.epoch, word, is_title=True)

    def _prefix(self, plan: LinePlan) -> str:
        """Return what the headline puts before the names of a line."""
        headline = self.headline
        if headline is None or not headline.word:
            return ""
        is_next = headline.is_title and self.lines == headline.line + 1
        return f"{headline.word}_" if plan.is_indented or is_next else ""

    def _counters(self, plan: LinePlan, numbers: Sequence[float]) -> tuple[float | None, float | None]:
        """Return the step and the epoch of a line: its own, or those of the headline that it belongs to."""
        step, epoch = _counter(plan.step, numbers), _counter(plan.epoch, numbers)
        if self.headline is not None and plan.step is None and plan.epoch is None:
            step, epoch = self._of_headline(plan)
        elif step is not None and epoch is None:
            epoch = self.epoch_of_headline
            if epoch is None and plan.is_validation and self.progress is not None:
                epoch = self.progress.epoch
        if step is not None:
            step *= plan.step_unit
        return step if step is None or step == int(step) else None, epoch  # `update: 4.53` is the time of one

    def _remember_headline(self, plan: LinePlan, step: float | None, epoch: float | None) -> None:
        if plan.epoch is not None:
            self.epoch_of_headline = epoch if plan.is_headline_of_block and step is None else None
        if plan.is_headline_of_block and not plan.is_bar:
            self.headline = _Headline(self.lines, step, epoch, words.plain_name(plan.block_word))
        elif plan.epoch is not None and not plan.is_validation and (not plan.is_bar or plan.is_strong):
            self.headline = _Headline(self.lines, None, epoch, "", has_results=True)
        elif plan.is_indented and self.headline is not None:
            self.headline = self.headline._replace(line=self.lines)
        elif not plan.is_indented and not plan.is_cell and not plan.is_bar:
            self.headline = None

    def _of_headline(self, plan: LinePlan) -> tuple[float | None, float | None]:
        """Return the step and epoch of the headline that a line belongs to: the next line, and indented ones."""
        headline = self.headline
        is_over = headline is None or self.lines > headline.line + (_MOST_BELOW if plan.is_indented else 1)
        is_best = any("best" in figure.name for figure in plan.figures)
        if headline is None or is_over or (headline.has_results and (is_best or not plan.is_validation)):
            self.headline = None
            return None, None
        self.headline = headline._replace(line=self.lines) if plan.is_indented or plan.is_cell else None
        return headline.step, headline.epoch

    def _new_readings(
        self,
        plan: LinePlan,
        numbers: Sequence[float],
        time: float,
        step: float | None,
        epoch: float | None,
        has_counter: bool,
        prefix: str,
    ) -> list[Reading]:
        """Return what is certain of a line of a form that is not familiar yet."""
        wanted = self._wanted(plan, has_counter)
        found = self._certain(self._values(wanted, numbers, time, step, epoch, prefix), has_counter, plan)
        is_whole = plan.total_steps is None and plan.total_epochs is None
        if self.is_training and has_counter and is_whole and any(words.is_result(figure.name) for figure in wanted):
            if len(self.familiar) >= _MOST_NAMES:
                self.familiar.clear()
            self.familiar[plan] = wanted
        return found

    def _compare_batches(self, first: float, second: float | None) -> None:
        """Notice that `Batch 0/100` is an epoch and its batch, as WeNet prints it: then the second number grows."""
        if self.first_batch is None or second is None:
            self.first_batch = (first, second)
        elif not self.is_epoch_first and first == self.first_batch[0] and second != self.first_batch[1]:
            self.is_epoch_first, self.progress, self.pace = True, None, Pace()
            self.pending = deque(map(self._with_epoch, self.pending), self.pending.maxlen)

    def _with_epoch(self, reading: Reading) -> Reading:
        epoch, step = self.first_batch or (None, None)
        if reading.point.step != epoch:
            return reading
        return reading._replace(point=reading.point._replace(epoch=epoch, step=_whole(step)))

    def _held_before(self, readings: list[Reading]) -> list[Reading]:
        """Return what was held of lines that have no other names than the first line that is certain."""
        known = {reading.name for reading in readings}
        names = [names for names, held in self.held.items() if known.issuperset(names) and _has_position(held)]
        found = [reading for some in names for reading in self._released(some)]
        return sorted(found, key=lambda reading: reading.point.time)

    def _published(self, readings: list[Reading]) -> Sequence[Reading]:
        """Return values, and those that waited for the first sign of a training."""
        if not self.is_training:
            self.pending.extend(readings)
            return ()
        if not self.pending:
            return readings
        waited = list(self.pending)
        self.pending.clear()
        return [*waited, *readings]

    def _shows_training(self, readings: list[Reading], has_counter: bool) -> bool:
        names = {reading.name for reading in readings}
        if any(words.is_result(name) or words.is_rate(name) if has_counter else words.is_loss(name) for name in names):
            self.results += 1
            return self.results > 1 or not has_counter
        return bool(names) and ((has_counter and len(names) >= _MANY) or any(map(_is_counted_result, self.pending)))

    def _wanted(self, plan: LinePlan, has_counter: bool) -> list[Figure]:
        """Return the figures of a line that may belong to a series."""
        found = []
        has_result = any(figure.is_exact and words.is_result(figure.name) for figure in plan.figures)
        for figure in plan.figures:
            is_named = figure.is_exact and (figure.is_strong or has_result)
            is_wanted = has_counter or is_named or plan.is_cell
            if is_wanted and (figure.name in self.names or len(self.names) < _MOST_NAMES):
                self.names.add(figure.name)
                found.append(figure)
        return found

    def _values(
        self,
        figures: list[Figure],
        numbers: Sequence[float],
        time: float,
        step: float | None,
        epoch: float | None,
        prefix: str,
    ) -> list[Reading]:
        whole = _whole(step)
        names = {figure.name: _with_prefix(prefix, figure.name) for figure in figures} if prefix else {}
        return [
            Reading(self.source, names.get(figure.name, figure.name), Point(time, epoch, whole, numbers[figure.place]))
            for figure in figures
        ]

    def _released(self, names: tuple[str, ...]) -> list[Reading]:
        """Return what was held of lines with these names; such lines are certain from now on."""
        held = self.held.get(names)
        if held is None:
            return []
        found, held.readings, held.is_certain = held.readings, [], True
        return found

    def _is_within(self) -> bool:
        return self.is_training and self.progress is not None

    def _is_familiar(self, names: tuple[str, ...]) -> bool:
        """Return whether a line without a counter repeats a figure of the training, or is about validation only."""
        results = filter(words.is_result, names)
        return not self.certain.isdisjoint(names) or all(words.validation_word(n.replace("_", " ")) for n in results)

    def _certain(self, readings: list[Reading], has_counter: bool, plan: LinePlan) -> list[Reading]:
        """Return the values that are certain now: of this line, and of earlier ones with the same names.

        A loss or another result beside a counter is certain at once. Other lines must come again: with a counter that
        has grown twice, or without a counter a second time.
        """
        names = tuple(reading.name for reading in readings)
        has_result = any(words.is_result(name) for name in names)
        if not readings:
            return readings
        if has_result and (has_counter or (self._is_within() and self._is_familiar(names))):
            self.certain.update(names)
            held = self.held.get(names)
            if held is not None and has_counter and held.form not in ("", plan.form) and not _has_position(held):
                held.readings.clear()  # what was printed once, before the first step
            return [*self._released(names), *readings]
        if names not in self.held and len(self.held) >= _MOST_NAMES:
            return []
        held = self.held.setdefault(names, _Held([]))
        if held.is_certain:
            return readings
        if not has_counter and held.form != plan.form:
            held.readings, held.form = [], plan.form  # a configuration that was printed before, in another form
        last = held.readings[-1].point if held.readings else None
        now = readings[0].point
        if has_counter:
            if last is not None and _position(now) <= _position(last):
                held.readings.clear()
            held.readings.extend(readings)
            times = 1 if self.is_training else _OFTEN
            held.is_certain = len(held.readings) > times * len(names)
        elif has_result:
            is_same = [reading.point.value for reading in held.readings] == [
                reading.point.value for reading in readings
            ]
            held.readings.extend([] if is_same else readings)  # a restart prints its configuration again
            held.is_certain = last is not None and not is_same
        elif plan.is_cell and len(held.readings) < _MOST_HELD:
            held.readings.extend(readings)
            held.is_certain = self.is_training and len(held.readings) > _OFTEN
        elif self.is_training:
            held.is_certain = last is not None and now.value != last.value
            held.readings = [*held.readings, *readings] if held.is_certain else readings
        if not held.is_certain:
            return []
        found, held.readings = held.readings, []
        return found

    def take_row(self, row: Row, time: float) -> Sequence[Reading]:
        """Take a row of a table; without a column that counts it is about validation."""
        if not row.is_counted and self.progress is not None:
            row = row._replace(epoch=self.progress.epoch)
        elif row.is_counted and row.epoch is None:
            row = row._replace(epoch=self.epoch_of_headline)
        self.headline = _Headline(self.lines, None, row.epoch, "", has_results=True)
        readings = [
            Reading(self.source, name, Point(time, row.epoch, _whole(row.step), value))
            for name, value in row.figures.items()
        ]
        if row.is_counted:
            last, step, steps = self.progress, _whole(row.step), _whole(row.steps)
            if step is None and last is not None and last.epoch == row.epoch:
                step, steps = last.step, last.steps  # a table of results, after that of the steps
            self.progress = Progress(time, step, steps, row.epoch, _whole(row.epochs))
            self.pace.add(self.progress, _whole(row.step), is_end=True)
            self.bar_total = self.progress.steps
            self.is_training = True
        return self._published(readings)

    def take_own(self, own: Mapping[str, float], text: str, time: float) -> Iterator[Reading]:
        """Take the values that the job file's patterns found in a line; its counters are theirs, else those we see."""
        template, numbers = split_line(text)
        plan = plan_line(template)
        step = own["step"] if "step" in own else _counter(plan.step, numbers)
        epoch = own["epoch"] if "epoch" in own else _counter(plan.epoch, numbers)
        self.total_steps = _whole(own.get("steps")) or self.total_steps
        self.total_epochs = _whole(own.get("epochs")) or self.total_epochs
        self.is_training = True
        if "step" in own or "epoch" in own:
            self.progress = Progress(time, _whole(step), self.total_steps, epoch, self.total_epochs)
            self.pace.add(self.progress, self.progress.step, is_end=True)
        for name, value in own.items():
            if name not in COUNTERS:
                yield Reading(self.source, name, Point(time, epoch, _whole(step), value))

    def with_totals(self, progress: Progress) -> Progress:
        """Return a progress with the totals that were printed elsewhere, where the counters have none beside them."""
        steps, epochs = progress.steps, progress.epochs
        total_steps, total_epochs = (
            self.total_steps or self.configured.steps,
            self.total_epochs or self.configured.epochs,
        )
        if steps is None and total_steps and progress.step is not None and progress.step <= total_steps:
            steps = total_steps
        if epochs is None and total_epochs and progress.epoch is not None and progress.epoch <= total_epochs:
            epochs = total_epochs
        return progress._replace(steps=steps, epochs=epochs)

    def _advance(
        self, plan: LinePlan, numbers: Sequence[float], time: float, step: float | None, epoch: float | None
    ) -> None:
        """Take the counters of a training line, unless they are those of a bar that is about something else."""
        steps, epochs = _counter(plan.steps, numbers), _counter(plan.epochs, numbers)
        steps = steps if steps is None else steps * plan.steps_unit
        if plan.is_batch and self.is_epoch_first:
            steps = None
        if plan.is_bar and not self._is_bar_of_training(plan, _whole(steps)):
            return
        if step is not None and plan.is_strong and not plan.is_bar:
            self.lines_count_steps = True
        if step is None and epoch is None:
            return
        last, own_step = self.progress, _whole(step)
        if last is not None:
            is_other_counter = last.steps is not None and steps is None and step is not None and step > last.steps
            if step is None or is_other_counter:
                step, steps = last.step, last.steps
            elif steps is None and not plan.is_bar:
                steps = last.steps
            if epoch is None:
                epoch, epochs = last.epoch, last.epochs
            elif epochs is None:
                epochs = last.epochs
        self.progress = Progress(time, _whole(step), _whole(steps), epoch, _whole(epochs))
        self.pace.add(self.progress, own_step, is_end=bool(plan.figures))

    def _is_bar_of_training(self, plan: LinePlan, total: int | None) -> bool:
        """Return whether a bar says so itself, or is the first without a name, while no lines count steps."""
        if plan.is_strong or words.is_training(plan.description):
            self.bar_total = total
            return True
        if self.bar_total is None or not self.is_training:
            self.bar_total = total
        return not self.lines_count_steps and self.bar_total == total


class _Held:
    """Values of lines with the same names, which wait for more such lines."""

    def __init__(self, readings: list[Reading]) -> None:
        self.readings, self.is_certain, self.form = readings, False, ""


def _has_position(held: _Held) -> bool:
    return any(reading.point.step is not None or reading.point.epoch is not None for reading in held.readings)


def _is_counted_result(reading: Reading) -> bool:
    return words.is_result(reading.name) and (reading.point.step is not None or reading.point.epoch is not None)


def _position(point: Point) -> tuple[float, float]:
    return point.epoch or 0.0, point.step or 0.0


def _with_prefix(prefix: str, name: str) -> str:
    return name if words.validation_word(name.replace("_", " ")) else prefix + name


def _counter(place: int | None, numbers: Sequence[float]) -> float | None:
    if place is None:
        return None
    value = numbers[place]
    return value if math.isfinite(value) and 0 <= value < _MOST_COUNTED else None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == int(value) else None
