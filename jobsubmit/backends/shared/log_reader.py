"""Read lines from the logs of job directories, one or many, in order of time."""

from __future__ import annotations

import heapq
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from jobsubmit.agent.logs.reading import LineReader
from jobsubmit.backends.models import LogLine, LogQuery, Stream
from jobsubmit.common.waiting import rest_after

if TYPE_CHECKING:
    from jobsubmit.agent.logs.index import Line

_FOLLOW_SECONDS, _READERS_AT_FULL_PACE = 0.1, 16
_SLOW_FOLLOW_SECONDS, _SILENT_SECONDS = 0.5, 5.0  # of a job that prints nothing
_SILENT_SHARE, _SLOWEST_SECONDS = 0.004, 1.0  # looks take this share of a core, unless they would be rarer
_FIRST_LOOK_BACK = 1 << 16
_FURTHER = 16


def read_lines(
    directories: Callable[[], Sequence[Path]], query: LogQuery, goes_on: Callable[[], bool], ask_every: float = 0
) -> Iterator[LogLine]:
    """Yield the lines that match a query; while the job runs, wait for more lines and more directories.

    `goes_on` is called every `ask_every` seconds, at most ten times a second.
    """
    readers = _Readers(directories, query)
    try:
        if query.tail is not None:
            yield from readers.tail(query.tail, is_all=not goes_on())
        else:
            yield from readers.from_the_start()
        asked, last, began = 0.0, time.monotonic(), time.thread_time()
        while time.monotonic() - asked < ask_every or goes_on():
            asked = asked if time.monotonic() - asked < ask_every else time.monotonic()
            for line in readers.new():
                last = time.monotonic()
                yield line
            is_silent = time.monotonic() - last >= _SILENT_SECONDS
            pause = _SLOW_FOLLOW_SECONDS if is_silent else _FOLLOW_SECONDS
            pause *= max(1.0, len(readers.readers) / _READERS_AT_FULL_PACE)
            time.sleep(max(pause, min(rest_after(began, _SILENT_SHARE), _SLOWEST_SECONDS)) if is_silent else pause)
            began = time.thread_time()
        yield from readers.rest()
    finally:
        readers.close()


class _Readers:
    """Read the logs of many directories at once, with a bounded number of open files and of bytes in memory."""

    def __init__(self, directories: Callable[[], Sequence[Path]], query: LogQuery) -> None:
        self.directories, self.query = directories, query
        self.readers: dict[Path, LineReader] = {}
        _allow_open_files()

    def _all(self) -> list[LineReader]:
        found = self.directories()
        for directory in found:
            if directory not in self.readers:
                self.readers[directory] = LineReader(str(directory), self._wants)
        for reader in self.readers.values():
            reader.share_with(len(self.readers))
        return list(self.readers.values())

    def _wants(self, source: tuple[int, int | None, str]) -> bool:
        return self.query.wants_source(*source)

    def from_the_start(self) -> Iterator[LogLine]:
        if self.query.since is not None:
            for reader in self._all():
                reader.since(self.query.since)
        return self.new()

    def new(self) -> Iterator[LogLine]:
        return self._chosen(reader.new() for reader in self._all())

    def rest(self) -> Iterator[LogLine]:
        return self._chosen(reader.rest() for reader in self._all())

    def tail(self, count: int, *, is_all: bool) -> Iterator[LogLine]:
        """Yield the last lines so far, looking no further back than needed; unfinished ones too if that is all."""
        found = [self._tail(reader, count, is_all=is_all) for reader in self._all()]
        yield from deque(heapq.merge(*found, key=lambda line: line.time), maxlen=count)

    def _tail(self, reader: LineReader, count: int, *, is_all: bool) -> deque[LogLine]:
        size, begins = _FIRST_LOOK_BACK, False
        last: deque[LogLine] = deque(maxlen=count)
        while not begins:
            begins = reader.last(size)
            last = deque(self._chosen([reader.rest() if is_all else reader.new()]), maxlen=count)
            if len(last) == count:
                break
            size *= _FURTHER
        return last

    def _chosen(self, lines: Iterable[Iterator[Line]]) -> Iterator[LogLine]:
        for moment, (node, rank, stream), data in heapq.merge(*lines, key=lambda line: line[0]):
            line = LogLine(node, rank, cast("Stream", stream), moment, data.decode("utf-8", "replace"))
            if self.query.wants(line):
                yield line

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()


def _allow_open_files() -> None:
    """Raise our limit of open files as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
