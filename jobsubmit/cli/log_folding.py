"""Shorten the lines of a job: paths start at the code directory, and what says nothing new is folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from jobsubmit.backends.models import LogLine
from jobsubmit.common.code_paths import short_paths

# What torch.distributed.run says when it gets the SIGTERM that ends every node.
_STOPPED = re.compile(r"torch[./]distributed[./]elastic.*(Got termination signal|Received .*death signal)")
_LAST = re.compile(r"SignalException: Process \d+ got signal: \d+")
_Source: TypeAlias = tuple[int, int | None, str]
_FRAMES = "frames of C++"
_LAST_TO_END = "the launcher of this node ended after the one that holds the store, which does no harm"
_TRACEBACK = "Traceback (most recent call last):"
_BETWEEN = ("During handling of", "The above exception", _TRACEBACK)
_MOST = 120  # lines of it; what is longer says more
_OF_RANK = re.compile(r"\[rank\d+\]: ")
_NUMBER = re.compile(r"\d+")
_FRAME = re.compile(r"(?:\[rank\d+\]: )?frame #\d+: .*(?:\+ 0x|\(0x| in /)")  # of C++
# What the launcher of a node says when another one, which held the store, ended before.
_LEFT_ALONE = re.compile(
    r"(.*torch/distributed/elastic/agent/server/api\.py:\d+\] )Error waiting on exit barrier\. "
    r"Elapsed: \d(?:\.\d+)?(?: |$)"
)


def lines_to_show(lines: Iterable[LogLine], *, folded: bool) -> Iterator[LogLine]:
    """Yield lines with short paths.

    If `folded`, one line replaces the output of a launcher that was stopped or was the last to end, a traceback that
    another process printed before, and the frames of C++ in an error.
    """
    for line in _fold_runs(_fold_repeats(_fold(lines))) if folded else lines:
        text = short_paths(line.text)
        yield line if text is line.text else replace(line, text=text)


def _fold(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    held: dict[int, _Held] = {}
    for line in lines:
        own = held.get(line.node) if line.rank is None else None
        if own and own.takes(line):
            if own.is_whole:
                yield from held.pop(line.node).shown()
            continue
        if own:
            yield from held.pop(line.node).shown()
        if line.rank is None and (line.text == _TRACEBACK or _STOPPED.search(line.text)):
            held[line.node] = _Held(line)
        else:
            yield line
    for own in held.values():
        yield from own.shown()


def _source(line: LogLine) -> _Source:
    return line.node, line.rank, line.stream


def _fold_repeats(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines with one in place of a traceback that another process printed, but for numbers in its last line."""
    first: dict[tuple[str, ...], LogLine] = {}
    held: dict[_Source, list[LogLine]] = {}
    for line in lines:
        source, text = _source(line), _OF_RANK.sub("", line.text)
        own = held.get(source)
        if own is None and text != _TRACEBACK:
            yield line
            continue
        own = held.setdefault(source, [])
        own.append(line)
        is_whole = text != _TRACEBACK and bool(text) and not text.startswith(" ")
        if is_whole or len(own) > _MOST:
            yield from _first_or_note(held.pop(source), first)
    for own in held.values():
        yield from own


def _first_or_note(traceback: list[LogLine], first: dict[tuple[str, ...], LogLine]) -> list[LogLine]:
    """Return a traceback, or the line that replaces it if another process printed it before."""
    *lines, end = (_OF_RANK.sub("", short_paths(line.text)) for line in traceback)
    plain, last = (*lines, _NUMBER.sub("#", end)), traceback[-1]
    before = first.setdefault(plain, last)
    if (before.node, before.rank) == (last.node, last.rank):
        return traceback
    process = f"node {before.node}" if before.rank is None else f"rank {before.rank}"
    text = (
        f"jobsubmit: the same traceback as {process}, {len(traceback)} lines (`jobsubmit logs` shows all): "
        f"{_OF_RANK.sub('', last.text)}"
    )
    return [replace(last, text=text)]


def _fold_runs(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines with one in place of frames of C++, and of what a launcher says that was the last to end."""
    runs: dict[_Source, _Run] = {}
    for line in lines:
        source = _source(line)
        run = runs.get(source)
        if run is not None and run.takes(line):
            run.count += 1
            continue
        if run is not None:
            yield runs.pop(source).note()
        left_alone = _LEFT_ALONE.match(line.text)
        if left_alone is not None:
            runs[source] = _Run(line, re.compile(re.escape(left_alone[1])), _LAST_TO_END)
        elif _FRAME.match(line.text):
            runs[source] = _Run(line, _FRAME, _FRAMES)
        else:
            yield line
    for run in runs.values():
        yield run.note()


@dataclass
class _Run:
    """Lines of a process that one line replaces: those that match a pattern."""

    first: LogLine
    pattern: re.Pattern[str]
    text: str
    count: int = 1

    def takes(self, line: LogLine) -> bool:
        return self.pattern.match(line.text) is not None

    def note(self) -> LogLine:
        """Return the line that replaces them."""
        return replace(self.first, text=f"jobsubmit: {self.text}; lines not shown: {self.count} (`jobsubmit logs`)")


class _Held:
    """Lines of one node that are held back until it is known whether they are noise."""

    def __init__(self, first: LogLine) -> None:
        self.lines = [first]
        self.is_noise = first.text != _TRACEBACK
        self.has_ended = False  # what follows belongs to it only if it goes on about the same exception
        self.is_whole = False

    def takes(self, line: LogLine) -> bool:
        """Add the next line of the node, if it belongs to the others; return whether it does."""
        goes_on = line.text.startswith(_BETWEEN)
        if self.has_ended and line.text and not goes_on:
            return False
        self.lines.append(line)
        if _LAST.search(line.text):
            self.is_noise = self.has_ended = True
        elif self.is_noise:
            self.has_ended = self.has_ended and not goes_on
        elif _STOPPED.search(line.text):
            self.is_noise = True
        else:
            self.is_whole = bool(line.text) and not line.text.startswith(" ") and not goes_on
        self.is_whole = self.is_whole or len(self.lines) > _MOST
        return True

    def shown(self) -> list[LogLine]:
        """Return the lines, or the one that replaces them."""
        if not self.is_noise or len(self.lines) > _MOST:
            return self.lines
        count = f"{len(self.lines)} of its lines are" if len(self.lines) > 1 else "one of its lines is"
        text = f"jobsubmit: the launcher of this node was stopped; {count} not shown (`jobsubmit logs` shows all)"
        return [replace(self.lines[0], text=text)]
