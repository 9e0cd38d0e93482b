"""The log lines of a host, written to stdout for the client, in the form of log_forwarder.py."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import select
import sys
import time
from collections import deque

from ..job_directory import JobDirectory
from ..locks import is_locked
from ..log_forwarder import tag_line
from ..logs.reading import LineReader

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    from ..logs.index import Line, Source

_LOOK_SECONDS, _SILENT_SECONDS = 0.1, 0.25
_ROUNDED = 0.001  # seconds: the client knows times rounded
_FIRST_LOOK_BACK, _FURTHER = 1 << 16, 16


class LineServer:
    """Writes the lines that a query selects: node, rank, stream, since, tail, grep; only those that come `after`."""

    def __init__(self, folder: str, query: dict[str, Any]) -> None:
        self.folder, self.query = folder, query
        self.readers = {}  # type: dict[str, LineReader]
        self.pattern = re.compile(query["grep"]) if query.get("grep") else None
        self.number = 0
        # The time of the last line that the client has, and how many lines of that time it has.
        self.after: float = (query.get("after") or (0.0, 0))[0]
        self.of_that_time: int = (query.get("after") or (0.0, 0))[1]

    def run(self, client: BinaryIO | None = None) -> None:
        """Write the lines; with a client, wait for more until the job has ended here, or the client is gone."""
        follow = client is not None
        tail = self.query.get("tail")
        if tail is not None:
            self._write(self._tail(tail, is_all=not (follow and is_alive(self.folder))))
        elif max(self.query.get("since") or 0.0, self.after):
            for reader in self._all():
                reader.since(max(self.query.get("since") or 0.0, self.after - _ROUNDED))
        while client is not None:
            if select.select([client], [], [], 0)[0]:
                return
            is_last = not is_alive(self.folder)
            has_more = self._write(line for reader in self._all() for line in reader.new())
            if is_last:
                break
            time.sleep(_LOOK_SECONDS if has_more else _SILENT_SECONDS)
        if tail is None or follow:
            self._write(line for reader in self._all() for line in reader.rest())

    def _all(self) -> list[LineReader]:
        for path in sorted(glob.glob(os.path.join(glob.escape(self.folder), "run-*", "node-*")), key=_attempt_of):
            if path not in self.readers:
                self.readers[path] = LineReader(path, self._wants)
        for reader in self.readers.values():
            reader.share_with(len(self.readers))
        return list(self.readers.values())

    def _wants(self, source: Source) -> bool:
        chosen = (self.query.get(name) for name in ("node", "rank", "stream"))
        return all(wanted in (None, own) for wanted, own in zip(chosen, source))

    def _tail(self, count: int, *, is_all: bool) -> list[Line]:
        last = deque(maxlen=count)  # type: deque[Line]
        for reader in self._all():
            last.extend(self._tail_of(reader, count, is_all=is_all))
        return list(last)

    def _tail_of(self, reader: LineReader, count: int, *, is_all: bool) -> deque[Line]:
        size, begins = _FIRST_LOOK_BACK, False
        last = deque(maxlen=count)  # type: deque[Line]
        while not begins:
            begins = reader.last(size)
            last = deque(self._chosen(reader.rest() if is_all else reader.new()), maxlen=count)
            if len(last) == count:
                break
            size *= _FURTHER
        return last

    def _chosen(self, lines: Iterator[Line]) -> Iterator[Line]:
        since = self.query.get("since")
        for line in lines:
            if since is not None and line[0] < since:
                continue
            if self.pattern is None or self.pattern.search(line[2].decode("utf-8", "replace")):
                yield line

    def _write(self, lines: Any) -> bool:
        """Write lines; return whether there was one."""
        before = self.number
        for line in self._chosen(lines):
            if self._was_read(line):
                continue
            self.number += 1
            sys.stdout.buffer.write(tag_line(line, self.number))
        sys.stdout.buffer.flush()
        return self.number > before

    def _was_read(self, line: Line) -> bool:
        """Return whether the client had a line before its connection broke; it has the times of tag_line."""
        moment = float("%.3f" % line[0])
        if moment == self.after and self.of_that_time:
            self.of_that_time -= 1
            return True
        return moment < self.after


def _attempt_of(path: str) -> int:
    return int(os.path.basename(os.path.dirname(path)).partition("-")[2])


def is_alive(folder: str) -> bool:
    """Return whether the agent of a host still runs a job."""
    return is_locked(JobDirectory(folder).lock, fcntl.LOCK_SH)
