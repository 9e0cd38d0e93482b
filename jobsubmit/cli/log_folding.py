"""Shorten the lines of a job: paths start at the code directory, tracebacks of stopped launchers are folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from jobsubmit.backends.models import LogLine
from jobsubmit.common.code_paths import short_paths

# What torch.distributed.run says when it gets the SIGTERM that ends every node.
_STOPPED = re.compile(r"torch[./]distributed[./]elastic.*(Got termination signal|Received .*death signal)")
_LAST = re.compile(r"SignalException: Process \d+ got signal: \d+")
_TRACEBACK = "Traceback (most recent call last):"
_BETWEEN = ("During handling of", "The above exception", _TRACEBACK)
_MOST = 120  # lines of it; what is longer says more


def lines_to_show(lines: Iterable[LogLine], *, folded: bool) -> Iterator[LogLine]:
    """Yield lines with short paths; if `folded`, one line replaces the output of each launcher that was stopped."""
    for line in _fold(lines) if folded else lines:
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
