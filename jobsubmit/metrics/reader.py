"""Read the metrics of a training from the lines that its ranks print, one line after another."""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from jobsubmit.metrics import words
from jobsubmit.metrics.configured_totals import ConfiguredTotals
from jobsubmit.metrics.line_plan import Figure, LinePlan, plan_line
from jobsubmit.metrics.model import Point, Progress
from jobsubmit.metrics.own_patterns import COUNTERS, OwnPatterns
from jobsubmit.metrics.table import Row, read_header, read_row
from jobsubmit.metrics.template import LONGEST_LINE, pattern_of, split_line
from jobsubmit.metrics.time_left import Pace

Source: TypeAlias = tuple[int, int | None]
"""Who printed a line: node and rank; the rank is None for a line of the node itself."""

_MOST_PENDING = 2000
_MOST_NAMES = 100
_OFTEN = 2
_MANY = 4
_MOST_HELD = 50
_MOST_COUNTED = 10**12
_LONGEST_CONFIGURATION = 3000
_FINAL_HEAD, _FINAL_ROW = re.compile(r"\*{5} \w+ metrics \*{5}"), re.compile(r"  \w+ +=")
_WHEN_LEARNED, _MOST_PATTERNS = (16, 64, 256, 1024), 12


class Reading(NamedTuple):
    """One value of a series: who printed it, its name, and the point."""

    source: Source
    name: str
    point: Point


class MetricsReader:
    """Reads lines in the order in which they were printed; yields a value once it certainly belongs to a training."""

    def __init__(self, patterns: Mapping[str, str] = MappingProxyType({})) -> None:
        self._sources: dict[Source, _SourceReader] = {}
        self._own = OwnPatterns(patterns)
        self._configured = ConfiguredTotals()
        self._configuration_left = _LONGEST_CONFIGURATION  # lines

    def read(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        """Return the values that are certain since this line: those of the line, or earlier ones as well."""
        if self._configuration_left:
            self._configuration_left -= 1
            self._configured.read(text)
        if len(text) > LONGEST_LINE:
            return ()
        if own := self._own.read(text):
            reader = self._sources.setdefault(source, _SourceReader(source, self._configured))
            return [*reader.take_own(own, text, time), *self._without_own(source, time, text)]
        return self._without_own(source, time, text) if self._own.names else self._read(source, time, text)

    def _without_own(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        """Return what is read without the patterns, except for the names that have one."""
        return [reading for reading in self._read(source, time, text) if reading.name not in self._own.names]

    def _read(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        reader = self._sources.get(source)
        if reader is not None:
            if reader.columns and (row := read_row(reader.columns, text)) is not None:
                return reader.take_row(row, time)
            for pattern, plan in reader.patterns:
                if match := pattern.fullmatch(text):
                    return reader.take(plan, [*map(float, match.groups())], time)
        return self._read_by_plan(reader, source, time, text) if words.may_be_progress(text) else ()

    def _read_by_plan(self, reader: _SourceReader | None, source: Source, time: float, text: str) -> Sequence[Reading]:
        if reader is not None and reader.is_of_final_table(text):
            return ()
        template, numbers = split_line(text)
        plan = plan_line(template)
        if reader is not None and plan in reader.familiar:
            reader.learn(plan, text)
            return reader.take(plan, numbers, time)
        may_be_header = plan.is_bar or (plan.step is None and plan.epoch is None)
        columns = read_header(text) if may_be_header and words.may_name_figures(text) else ()
        if reader is None:
            if plan.is_empty and not columns:
                return ()
            reader = self._sources[source] = _SourceReader(source, self._configured)
        if columns:
            reader.columns = columns
            return ()
        return () if plan.is_empty else reader.take(plan, numbers, time)

    def progress(self) -> dict[Source, Progress]:
        """Return how far each source is that trains and shows it."""
        return {
            source: reader.with_totals(reader.progress)
            for source, reader in self._sources.items()
            if reader.is_training and reader.progress is not None
        }

    def end(self) -> float | None:
        """Return when the training will end, in seconds since the epoch: as the slowest rank that shows it goes."""
        ends = (reader.end() for reader in self._sources.values() if reader.is_training)
        return max((end for end in ends if end is not None), default=None)

    def share_done(self, source: Source) -> float | None:
        """Return the share of the training that a source has done, from 0 to 1; None if that is unknown."""
        reader = self._sources[source]
        return reader.pace.share(reader.with_totals(reader.progress)) if reader.progress is not None else None

    def positions(self, source: Source) -> list[tuple[float, float]]:
        """Return (time, how much was done) of each point of a source; how much counts steps, or epochs."""
        reader = self._sources[source]
        return reader.pace.positions(reader.with_totals(reader.progress)) if reader.progress is not None else []

    def is_step_of_epoch(self, source: Source) -> bool:
        """Return whether the steps of a source start again in each epoch."""
        reader = self._sources[source]
        return reader.progress is not None and reader.pace.is_step_of_epoch(reader.with_totals(reader.progress))

    def steps_back(self) -> dict[Source, list[tuple[int, int]]]:
        """Return from where to where the steps of each source went back without a new epoch."""
        return {source: found for source, reader in self._sources.items() if (found := reader.pace.steps_back)}


class _SourceReader:
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
        step, epoch = _counter(plan.step, numbers), _counter(plan.epoch, numbers)
        if step is not None:
            step *= plan.step_unit
        step = step if step is None or step.is_integer() else None  # `update: 4.53` is the time of one
        if plan.is_batch and step is not None:
            self._compare_batches(step, _counter(plan.steps, numbers))
            if self.is_epoch_first:
                step, epoch = _counter(plan.steps, numbers), step
        has_counter = (step is not None or epoch is not None) and (not plan.is_bar or plan.is_strong)
        familiar = self.familiar.get(plan) if has_counter else None
        if familiar is not None:
            readings = self._values(familiar, numbers, time, step, epoch)
        else:
            readings = self._new_readings(plan, numbers, time, step, epoch, has_counter)
            self.total_steps = _whole(_counter(plan.total_steps, numbers)) or self.total_steps
            self.total_epochs = _whole(_counter(plan.total_epochs, numbers)) or self.total_epochs
        if not plan.is_validation:
            if readings or plan.is_headline:
                self._advance(plan, numbers, time, step, epoch)
            if not self.is_training and self._shows_training(readings, has_counter):
                self.is_training = True
                readings = [*self._held_before(readings), *readings]
        return self._published(readings)

    def _new_readings(
        self,
        plan: LinePlan,
        numbers: Sequence[float],
        time: float,
        step: float | None,
        epoch: float | None,
        has_counter: bool,
    ) -> list[Reading]:
        """Return what is certain of a line of a form that is not familiar yet."""
        wanted = self._wanted(plan, has_counter)
        found = self._certain(self._values(wanted, numbers, time, step, epoch), has_counter, plan)
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
        self, figures: list[Figure], numbers: Sequence[float], time: float, step: float | None, epoch: float | None
    ) -> list[Reading]:
        whole = _whole(step)
        return [
            Reading(self.source, figure.name, Point(time, epoch, whole, numbers[figure.place])) for figure in figures
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
        readings = [
            Reading(self.source, name, Point(time, row.epoch, _whole(row.step), value))
            for name, value in row.figures.items()
        ]
        if row.is_counted:
            self.progress = Progress(time, _whole(row.step), _whole(row.steps), row.epoch, _whole(row.epochs))
            self.pace.add(self.progress, self.progress.step, is_end=True)
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


def _counter(place: int | None, numbers: Sequence[float]) -> float | None:
    if place is None:
        return None
    value = numbers[place]
    return value if math.isfinite(value) and 0 <= value < _MOST_COUNTED else None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == int(value) else None
