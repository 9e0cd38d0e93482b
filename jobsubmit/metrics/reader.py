"""Read the metrics of a training from the lines that its ranks print, one line after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jobsubmit.metrics import box, words
from jobsubmit.metrics.configured_totals import ConfiguredTotals
from jobsubmit.metrics.line_plan import plan_line
from jobsubmit.metrics.model import Progress
from jobsubmit.metrics.own_patterns import OwnPatterns
from jobsubmit.metrics.source_reader import Reading, Source, SourceReader
from jobsubmit.metrics.table import read_header, read_row
from jobsubmit.metrics.template import LONGEST_LINE, split_line

_LONGEST_CONFIGURATION = 3000


class MetricsReader:
    """Reads lines in the order in which they were printed; yields a value once it certainly belongs to a training."""

    def __init__(self, patterns: Mapping[str, str] = MappingProxyType({})) -> None:
        self._sources: dict[Source, SourceReader] = {}
        self._boxes: dict[Source, list[tuple[float, str]]] = {}  # the lines of those that are printed now
        self._own = OwnPatterns(patterns)
        self._configured = ConfiguredTotals()
        self._configuration_left = _LONGEST_CONFIGURATION  # lines

    def read(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        """Return the values that are certain since this line: those of the line, or earlier ones as well."""
        if self._configuration_left:
            self._configuration_left -= 1
            self._configured.read(text)
        if "\r" in text:
            return [found for state in text.split("\r") if state for found in self._read_state(source, time, state)]
        return self._read_state(source, time, text)

    def _read_state(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        """Read a line, or one state of a line that is written again and again, as progress bars are."""
        if len(text) > LONGEST_LINE:
            return ()
        if own := self._own.read(text):
            reader = self._sources.setdefault(source, SourceReader(source, self._configured))
            return [*reader.take_own(own, text, time), *self._without_own(source, time, text)]
        return self._without_own(source, time, text) if self._own.names else self._read(source, time, text)

    def _without_own(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        """Return what is read without the patterns, except for the names that have one."""
        return [reading for reading in self._read(source, time, text) if reading.name not in self._own.names]

    def _read(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        if source in self._boxes or box.may_be_in_box(text):
            return self._read_in_box(source, time, text)
        return self._read_alone(source, time, text)

    def _read_in_box(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        """Read a line that may belong to a box: the box is read as one line, or if it is none, each line alone."""
        kept = self._boxes.get(source)
        if kept is not None and len(kept) < box.MOST_LINES and box.is_line(text):
            kept.append((time, text))
            return ()
        self._boxes.pop(source, None)
        is_rule = box.is_rule(text)
        row = box.row_of(line for _, line in kept) if kept and is_rule else None
        if is_rule:
            self._boxes[source] = []
        if row is not None:
            return self._sources.setdefault(source, SourceReader(source, self._configured)).take_row(row, time)
        found = [reading for then, line in kept or () for reading in self._read_alone(source, then, line)]
        return found if is_rule else [*found, *self._read_alone(source, time, text)]

    def _read_alone(self, source: Source, time: float, text: str) -> Sequence[Reading]:
        reader = self._sources.get(source)
        if reader is not None:
            reader.lines += 1
            if reader.columns and (row := read_row(reader.columns, text)) is not None:
                return reader.take_row(row, time)
            for pattern, plan in reader.patterns:
                if match := pattern.fullmatch(text):
                    return reader.take(plan, [*map(float, match.groups())], time)
        return self._read_by_plan(reader, source, time, text) if words.may_be_progress(text) else ()

    def _read_by_plan(self, reader: SourceReader | None, source: Source, time: float, text: str) -> Sequence[Reading]:
        if reader is not None and reader.is_of_final_table(text):
            return ()
        template, numbers = split_line(text)
        if reader is not None and not numbers and (word := words.title_word(template[0])):
            reader.take_title(word)
            return ()
        plan = plan_line(template)
        if reader is not None and plan in reader.familiar:
            reader.learn(plan, text)
            return reader.take(plan, numbers, time)
        may_be_header = plan.is_bar or (plan.step is None and plan.epoch is None)
        columns = read_header(text) if may_be_header and words.may_name_figures(text) else ()
        if reader is None:
            if plan.is_empty and not columns:
                return ()
            reader = self._sources[source] = SourceReader(source, self._configured)
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
