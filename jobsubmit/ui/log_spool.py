"""The lines of one job's log in a temporary file, so that any of them is found by its number."""

from __future__ import annotations

import json
import tempfile
import threading
from array import array
from collections.abc import Iterator
from typing import NamedTuple, cast

from jobsubmit.backends.models import LogLine, Stream
from jobsubmit.errors import BackendError

_EVERY = 64  # lines between two marks
_MOST_BYTES = 512 << 20
_LONGEST = 20_000  # characters of a line on a page


class NumberedLine(NamedTuple):
    """A line and its number, counted from 0 in the order of the log."""

    number: int
    line: LogLine


class Selection(NamedTuple):
    """Which lines a reader wants: of a rank or of a node itself, of a stream, with a text in it (any case)."""

    rank: int | None = None
    node: int | None = None
    stream: str = ""
    text: str = ""

    def wants(self, line: LogLine) -> bool:
        """Return whether a line is selected."""
        return (
            (self.rank is None or line.rank == self.rank)
            and (self.node is None or (line.node == self.node and line.rank is None))
            and (not self.stream or line.stream == self.stream)
            and (not self.text or self.text.lower() in line.text.lower())
        )


class LogSpool:
    """Keeps lines; one thread adds, others read. Once there is no more room, `lost` counts the lines that are not kept.

    Raises BackendError if there is no folder for temporary files.
    """

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="jobsubmit-ui-", buffering=0)  # noqa: SIM115 - as long as this
        except OSError as error:
            folder = tempfile.gettempdir()
            raise BackendError(f"{folder}: {error.strerror}", "free space there, or set TMPDIR") from error
        self._marks = array("Q")
        self._size = 0
        self.count = 0
        self.lost = 0
        self._lock = threading.Lock()
        self.sources: set[tuple[int, int | None]] = set()

    def add(self, line: LogLine) -> None:
        """Add a line."""
        text = line.text if len(line.text) <= _LONGEST else line.text[:_LONGEST] + " …"
        data = json.dumps([line.node, line.rank, line.stream, line.time, text]).encode() + b"\n"
        with self._lock:
            if self.lost or self._size + len(data) > _MOST_BYTES or not self._written(data):
                self.lost += 1
                return
            if self.count % _EVERY == 0:
                self._marks.append(self._size)
            self._size += len(data)
            self.count += 1
            self.sources.add((line.node, line.rank))

    def _written(self, data: bytes) -> bool:
        """Write a line behind the last one; return whether the disk has room for it."""
        try:
            self._file.seek(self._size)
            return self._file.write(data) == len(data)
        except OSError:
            return False

    def after(self, number: int, wanted: Selection, most: int) -> tuple[list[NumberedLine], int]:
        """Return the selected lines from a number on, at most so many, and the number at which to go on."""
        found: list[NumberedLine] = []
        while number < self.count and len(found) < most:
            for numbered in self._block(number):
                number = numbered.number + 1
                if wanted.wants(numbered.line):
                    found.append(numbered)
                    if len(found) >= most:
                        break
        return found, number

    def before(self, number: int, wanted: Selection, most: int) -> list[NumberedLine]:
        """Return the last selected lines before a number, at most so many."""
        found: list[NumberedLine] = []
        end = min(number, self.count)
        while end > 0 and len(found) < most:
            start = (end - 1) // _EVERY * _EVERY
            block = [one for one in self._block(start) if one.number < end and wanted.wants(one.line)]
            found = [*block, *found]
            end = start
        return found[-most:]

    def _block(self, number: int) -> Iterator[NumberedLine]:
        """Yield the lines from a number to the end of its block."""
        place = number // _EVERY
        with self._lock:
            end = self._marks[place + 1] if place + 1 < len(self._marks) else self._size
            self._file.seek(self._marks[place])
            data = self._file.read(end - self._marks[place])
        for offset, text in enumerate(data.splitlines()):
            if place * _EVERY + offset >= number:
                node, rank, stream, time, content = json.loads(text)
                yield NumberedLine(place * _EVERY + offset, LogLine(node, rank, cast("Stream", stream), time, content))

    def close(self) -> None:
        """Remove the file."""
        with self._lock:
            self._file.close()
