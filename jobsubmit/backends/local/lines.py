"""Choose lines from the logs of a local job."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from jobsubmit.backends import LogLine, LogQuery, Stream
from jobsubmit.backends.local.gang.logs import LineReader

if TYPE_CHECKING:
    from jobsubmit.backends.local.gang.logs import Line

_FOLLOW_SECONDS = 0.1
_LOOK_SECONDS = 0.3  # how often a follower asks whether the job goes on
_FIRST_LOOK_BACK = 1 << 16
_FURTHER = 16


def chosen_lines(job_dir: Path, query: LogQuery, goes_on: Callable[[], bool]) -> Iterator[LogLine]:
    """Yield the lines that a query chooses; while the job goes on wait for more of them."""
    reader = LineReader(str(job_dir), lambda source: query.wants_source(*source))
    try:
        if query.tail is not None:
            yield from _tail(reader, query, is_all=not goes_on())
        else:
            yield from _from_the_start(reader, query)
        looked = 0.0
        while time.monotonic() - looked < _LOOK_SECONDS or goes_on():
            looked = looked if time.monotonic() - looked < _LOOK_SECONDS else time.monotonic()
            yield from _chosen(reader.new(), query)
            time.sleep(_FOLLOW_SECONDS)
        yield from _chosen(reader.rest(), query)
    finally:
        reader.close()


def _from_the_start(reader: LineReader, query: LogQuery) -> Iterator[LogLine]:
    if query.since is not None:
        reader.since(query.since)
    return _chosen(reader.new(), query)


def _tail(reader: LineReader, query: LogQuery, *, is_all: bool) -> Iterator[LogLine]:
    """Yield the last lines so far, looking no further back than needed; unfinished ones too if there is no more."""
    size, begins = _FIRST_LOOK_BACK, False
    last: deque[LogLine] = deque(maxlen=query.tail)
    while not begins:
        begins = reader.last(size)
        last = deque(_chosen(reader.rest() if is_all else reader.new(), query), maxlen=query.tail)
        if len(last) == query.tail:
            break
        size *= _FURTHER
    yield from last


def _chosen(lines: Iterator[Line], query: LogQuery) -> Iterator[LogLine]:
    for moment, (node, rank, stream), data in lines:
        line = LogLine(node, rank, cast("Stream", stream), moment, data.decode("utf-8", "replace"))
        if query.wants(line):
            yield line
