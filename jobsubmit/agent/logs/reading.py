"""Read the lines of a job's logs, in the order of the index."""

from __future__ import annotations

import itertools
import os

from ..atomic_write import open_regular, read_file
from ..events import EventReader
from ..job_directory import STREAMS, JobDirectory
from ..json_form import fits, parse_json
from .index import RECORD_BYTES, unpack_records

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from .index import Line, Source

_BLOCK, _SMALLEST_BLOCK = 4 << 20, 64 << 10
_OPEN = 512  # logs at once, by all readers of a process
_LONGEST_LINE = 8 << 20
_UPDATE_SECONDS = 1.0  # a progress bar that redraws its line is shown that often


class LineReader:
    """Reads the lines of a job's logs, each once, in the order of the index."""

    def __init__(self, job_dir: str, wants: Callable[[Source], bool] = lambda source: True) -> None:
        self.job_dir, self.files, self.wants = job_dir, JobDirectory(job_dir), wants
        self.position = 0  # bytes of the index read
        self.logs: dict[str, _Log] = {}
        self.opened: list[_Log] = []
        self.cuts: dict[str, int] = {}
        self.cuts_changed = 0
        self.share_with(1)

    def share_with(self, readers: int) -> None:
        """Limit open files and memory to this reader's share, for so many readers."""
        self.most_open, self.block = max(1, _OPEN // readers), max(_SMALLEST_BLOCK, _BLOCK // readers)

    def since(self, moment: float) -> None:
        """Begin with the lines that were written at a time or later."""
        self._begin_at(sum(written < moment for _, _, written in self._records()))

    def last(self, size: int) -> bool:
        """Begin with the last `size` bytes, or slightly more; return whether this includes everything."""
        pieces, ends = [], {}  # type: list[tuple[int, int]], dict[str, int]
        for place, (source, end, _) in enumerate(self._records()):
            if self.wants(source):
                path = self.files.log_of(*source)
                pieces.append((place, end - ends.get(path, 0)))
                ends[path] = end
        first = 0
        while pieces and size > 0:
            first, length = pieces.pop()
            size -= length
        self._begin_at(first)
        return not pieces

    def _begin_at(self, place: int) -> None:
        """Skip the records before a place, and their bytes except for the beginning of an unfinished line."""
        self.close()
        self.logs, self.position = {}, place * RECORD_BYTES
        for source, end, _ in itertools.islice(self._records(), place):
            self._log(source).skip(end)

    def _records(self) -> Iterator[tuple[Source, int, float]]:
        return unpack_records(self._index(0))

    def _index(self, position: int) -> bytes:
        try:
            data = read_file(self.files.log_index, start=position)
        except OSError:
            return b""
        return data[: len(data) // RECORD_BYTES * RECORD_BYTES]

    def new(self) -> Iterator[Line]:
        """Yield the lines that were finished since the last call."""
        data = self._index(self.position)
        if not data:
            return
        self.position += len(data)
        for source, end, moment in unpack_records(data):
            if self.wants(source):
                yield from self._opened(source).lines(end, moment, self._cuts(), self.block)
            else:
                self._log(source).skip(end)

    def rest(self) -> Iterator[Line]:
        """Yield the lines that are not in the index, with unfinished last lines; for the end of a job."""
        yield from self.new()
        for source in self._all_sources():
            if self.wants(source):
                yield from self._opened(source).rest(self._cuts(), self.block)

    def close(self) -> None:
        """Close all logs; they are reopened when needed."""
        for log in self.opened:
            log.close()
        self.opened.clear()

    def _opened(self, source: Source) -> _Log:
        log = self._log(source)
        if log.stream is None:
            if len(self.opened) >= self.most_open:
                self.opened.pop(0).close()
            self.opened.append(log)
        return log

    def _log(self, source: Source) -> _Log:
        path = self.files.log_of(*source)
        log = self.logs.get(path) or self.logs.setdefault(path, _Log(path))
        log.source = source
        return log

    def _cuts(self) -> dict[str, int]:
        try:
            changed = os.stat(self.files.log_cuts).st_mtime_ns
            if changed != self.cuts_changed:
                found, self.cuts_changed = parse_json(read_file(self.files.log_cuts)), changed
                if isinstance(found, dict) and all(fits(end, int) for end in found.values()):
                    self.cuts = found
        except (OSError, ValueError):
            pass
        return self.cuts

    def _all_sources(self) -> list[Source]:
        """Return a source for every log there is, nodes first."""
        nodes = {rank: node for (node, rank, _), _, _ in self._records() if rank is not None}
        found = []  # type: list[Source]
        for name in os.listdir(self.files.logs) if os.path.isdir(self.files.logs) else []:
            whose, _, rest = name.partition(".")
            kind, _, number = whose.partition("-")
            stream = rest[: -len(".log")] if rest.endswith(".log") else ""
            if stream not in STREAMS or not number.isdigit():
                continue
            if kind == "node":
                found.append((int(number), None, stream))
            elif kind == "rank":
                nodes = nodes if int(number) in nodes else self._nodes_of_ranks()
                found.append((nodes.get(int(number), 0), int(number), stream))
        return sorted(found, key=lambda source: (source[1] is not None, source[1] or 0, source[0], source[2]))

    def _nodes_of_ranks(self) -> dict[int, int]:
        events = EventReader(self.job_dir).new()
        return {event["rank"]: event["node"] for event in events if event["event"] == "rank_start"}


class _Log:
    """Read one log piece by piece, as lines."""

    source: Source

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        self.partial = b""
        self.moment = 0.0
        self.updated = 0.0
        self.is_begun = False
        self.is_in_line = False  # after a gap: what follows up to the end of the line is not shown
        self.stream: BinaryIO | None = None

    def skip(self, end: int) -> None:
        """Begin after `end` bytes, but with a whole line."""
        self.offset, self.partial, self.is_begun = end, b"", False

    def lines(self, end: int, moment: float, cuts: dict[str, int], block_size: int) -> Iterator[Line]:
        """Yield the lines that are complete up to `end` bytes."""
        if self.stream is None:
            try:
                self.stream = open(self.path, "rb", opener=open_regular)  # noqa: SIM115 - it stays open from piece to piece
            except OSError:
                return
            if not self.is_begun:
                self._go_back_to_line()
            self.is_begun = True
        self.moment = moment
        cut = cuts.get(os.path.basename(self.path), 0)
        if self.offset < cut:
            yield self._after_cut(cut)
        while self.offset < end and self.stream is not None:
            self.stream.seek(self.offset)
            block = self.stream.read(min(block_size, end - self.offset))
            if not block:
                return
            self.offset += len(block)
            yield from self._split(block)

    def rest(self, cuts: dict[str, int], block_size: int) -> Iterator[Line]:
        """Yield the remaining lines, to the last byte."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return
        if status.st_size > self.offset:
            yield from self.lines(status.st_size, max(self.moment, status.st_mtime), cuts, block_size)
        if self.partial:
            yield self._line(self.partial)
            self.partial = b""

    def close(self) -> None:
        """Close the file; reading can continue later."""
        if self.stream is not None:
            self.stream.close()
        self.stream = None

    def _go_back_to_line(self) -> None:
        assert self.stream
        start = self.offset
        while start > 0 and self.offset - start < _LONGEST_LINE:
            step = min(start, 1 << 16)
            self.stream.seek(start - step)
            end = self.stream.read(step).rfind(b"\n")
            if end >= 0:
                self.offset = start - step + end + 1
                return
            start -= step
        self.offset = start

    def _after_cut(self, cut: int) -> Line:
        """Return a line that says how much is missing; reading continues with the next complete line."""
        gone = cut - self.offset
        self.offset, self.partial, self.is_in_line = cut, b"", True
        return self._line(b"jobsubmit: %d bytes are missing here: a log keeps only its newest part" % gone)

    def _split(self, block: bytes) -> Iterator[Line]:
        if self.is_in_line:
            _, newline, block = block.partition(b"\n")
            self.is_in_line = not newline
        *whole, rest = (self.partial + block).split(b"\n")
        for line in whole:
            yield self._line(line)
        redrawn = rest.rfind(b"\r", 0, len(rest) - 1)
        if redrawn >= 0:
            if self.moment - self.updated >= _UPDATE_SECONDS:
                self.updated = self.moment
                yield self._line(rest[:redrawn])
            rest = rest[redrawn + 1 :]
        if len(rest) > _LONGEST_LINE:
            yield self._line(rest)
            rest = b""
        self.partial = rest

    def _line(self, line: bytes) -> Line:
        """Return a line as a terminal would show it, without overwritten text."""
        return self.moment, self.source, line.rstrip(b"\r").rpartition(b"\r")[2]


def last_lines(
    job_dir: str, node: int, rank: int | None, count: int, *, since: float = 0.0, size: int = 1 << 16
) -> list[str]:
    """Return the last non-empty lines of a rank, or of its node apart from its ranks, as text."""
    reader = LineReader(job_dir, lambda source: source[1] == rank and (rank is not None or source[0] == node))
    reader.last(size)
    found = [*reader.new(), *reader.rest()]
    reader.close()
    lines = [line.decode("utf-8", "replace") for moment, _, line in found if moment >= since]
    return [line for line in lines if line.strip()][-count:]
