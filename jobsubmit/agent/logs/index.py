"""The logs of a job: one file a stream, and one index that says when which piece of which file was written.

Ranks and nodes write their files themselves. The supervisor looks at their sizes and appends a record to the index for
each that grew: so every line has a time, and the index is the one order of all lines, however often they are read.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import struct
import sys
import time

from .. import files, protocol

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

INDEX = "index"
CUTS = "cuts.json"
_RECORD = struct.Struct("<dQHHi")  # time, end of the piece in bytes, node, stream, rank (or -1)
_NO_RANK = -1
_BLOCK, _SMALLEST_BLOCK = 4 << 20, 64 << 10
_OPEN = 512  # logs at once, by all readers of a process
_LONGEST_LINE = 8 << 20
_UPDATE_SECONDS = 1.0  # a progress bar that redraws its line is shown that often
_KEEP_SIZE_AND_PUNCH_HOLE = 3
_PAGE = 4096

if TYPE_CHECKING:
    Source = tuple[int, int | None, str]  # node, rank, stream
    Line = tuple[float, Source, bytes]  # time of writing in seconds since the epoch, whose, without its end


class IndexWriter:
    """Note when which log grew; give back the disk space of the oldest part of one that grows beyond the limit."""

    def __init__(self, job_dir: str, limit: int) -> None:
        self.job_dir, self.limit = job_dir, limit
        self.ends: dict[str, int] = {}
        self.cuts: dict[str, int] = {}
        self.can_cut = sys.platform == "linux"
        self.grown_at = time.monotonic()

    def note(self, sources: Iterable[Source]) -> None:
        """Look at each log."""
        now, records = time.time(), b""
        for source in sources:
            node, rank, stream = source
            path = files.log_of(self.job_dir, *source)
            try:
                size = os.stat(path).st_size
            except FileNotFoundError:
                continue
            if size > self.ends.get(path, 0):
                self.ends[path] = size
                number = _NO_RANK if rank is None else rank
                records += _RECORD.pack(now, size, node, files.STREAMS.index(stream), number)
                if self.can_cut and size - self.cuts.get(os.path.basename(path), 0) > self.limit:
                    self._cut(path, size)
        if records:
            self.grown_at = time.monotonic()
            self._append(records)

    def _append(self, records: bytes) -> None:
        """Append to the index, whole records only; what a full disk does not take is noted with what comes next."""
        try:
            with open(os.path.join(self.job_dir, files.LOGS, INDEX), "ab", buffering=0) as index:
                whole = index.tell() // _RECORD.size * _RECORD.size
                if whole != index.tell():
                    index.truncate(whole)
                written = index.write(records) or 0
                if written < len(records):
                    index.truncate(whole + written // _RECORD.size * _RECORD.size)
        except OSError as error:
            if not files.is_full(error):
                raise

    def _cut(self, path: str, size: int) -> None:
        """Punch a hole over the oldest part of a log: no writer is disturbed, and no place in it moves."""
        end = (size - self.limit // 2) // _PAGE * _PAGE
        self.cuts[os.path.basename(path)] = end
        file = os.path.join(self.job_dir, files.LOGS, CUTS)
        files.replace_file(file, json.dumps(self.cuts))  # before the hole is there, so that nobody reads it
        libc = ctypes.CDLL(None, use_errno=True)
        with open(path, "r+b") as log:
            done = libc.fallocate(log.fileno(), _KEEP_SIZE_AND_PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(end))
        if done != 0:
            self.can_cut = False
            os.remove(file)
            files.append_event(self.job_dir, "logs_not_capped", file=os.path.basename(path))


def _unpacked(data: bytes) -> Iterator[tuple[Source, int, float]]:
    for moment, end, node, stream, rank in _RECORD.iter_unpack(data):
        if (
            stream < len(files.STREAMS) and rank >= _NO_RANK and protocol.fits(moment, protocol.TIME)
        ):  # else it is damaged
            yield (node, None if rank == _NO_RANK else rank, files.STREAMS[stream]), end, moment


class LineReader:
    """Read the lines of a job's logs, each once, in the order of the index."""

    def __init__(self, job_dir: str, wants: Callable[[Source], bool] = lambda source: True) -> None:
        self.folder, self.job_dir, self.wants = os.path.join(job_dir, files.LOGS), job_dir, wants
        self.position = 0  # bytes of the index read
        self.logs: dict[str, _Log] = {}
        self.opened: list[_Log] = []
        self.cuts: dict[str, int] = {}
        self.cuts_changed = 0
        self.share_with(1)

    def share_with(self, readers: int) -> None:
        """Be one of so many readers: hold fewer files open, and less of them in memory."""
        self.most_open, self.block = max(1, _OPEN // readers), max(_SMALLEST_BLOCK, _BLOCK // readers)

    def since(self, moment: float) -> None:
        """Begin with what was written at a time or later."""
        self._begin_at(sum(written < moment for _, _, written in self._records()))

    def last(self, size: int) -> bool:
        """Begin with the last `size` bytes, or somewhat more; return whether that is all there is."""
        pieces, ends = [], {}  # type: list[tuple[int, int]], dict[str, int]
        for place, (source, end, _) in enumerate(self._records()):
            if self.wants(source):
                path = files.log_of(self.job_dir, *source)
                pieces.append((place, end - ends.get(path, 0)))
                ends[path] = end
        first = 0
        while pieces and size > 0:
            first, length = pieces.pop()
            size -= length
        self._begin_at(first)
        return not pieces

    def _begin_at(self, place: int) -> None:
        """Skip the records before a place, and what they stand for but for the beginnings of lines."""
        self.close()
        self.logs, self.position = {}, place * _RECORD.size
        for source, end, _ in itertools.islice(self._records(), place):
            self._log(source).skip(end)

    def _records(self) -> Iterator[tuple[Source, int, float]]:
        return _unpacked(self._index(0))

    def _index(self, position: int) -> bytes:
        try:
            with open(os.path.join(self.folder, INDEX), "rb", opener=files.regular) as index:
                index.seek(position)
                data = index.read()
        except OSError:
            return b""
        return data[: len(data) // _RECORD.size * _RECORD.size]

    def new(self) -> Iterator[Line]:
        """Yield the lines that were finished since the last call."""
        data = self._index(self.position)
        if not data:
            return
        self.position += len(data)
        for source, end, moment in _unpacked(data):
            if self.wants(source):
                yield from self._opened(source).lines(end, moment, self._cuts(), self.block)
            else:
                self._log(source).skip(end)

    def rest(self) -> Iterator[Line]:
        """Yield what the index does not tell of, unfinished last lines too; for the end of a job."""
        yield from self.new()
        for source in self._all_sources():
            if self.wants(source):
                yield from self._opened(source).rest(self._cuts(), self.block)

    def close(self) -> None:
        """Close all logs; they are opened again where that is needed."""
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
        path = files.log_of(self.job_dir, *source)
        log = self.logs.get(path) or self.logs.setdefault(path, _Log(path))
        log.source = source
        return log

    def _cuts(self) -> dict[str, int]:
        try:
            changed = os.stat(os.path.join(self.folder, CUTS)).st_mtime_ns
            if changed != self.cuts_changed:
                data = files.read_file(os.path.join(self.folder, CUTS))
                found, self.cuts_changed = protocol.parsed(data), changed
                if isinstance(found, dict) and all(protocol.fits(end, int) for end in found.values()):
                    self.cuts = found
        except (OSError, ValueError):
            pass
        return self.cuts

    def _all_sources(self) -> list[Source]:
        """Return a source for every log there is, nodes first."""
        nodes = {rank: node for (node, rank, _), _, _ in self._records() if rank is not None}
        found = []  # type: list[Source]
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else []:
            whose, _, rest = name.partition(".")
            kind, _, number = whose.partition("-")
            stream = rest[: -len(".log")] if rest.endswith(".log") else ""
            if stream not in files.STREAMS or not number.isdigit():
                continue
            if kind == "node":
                found.append((int(number), None, stream))
            elif kind == "rank":
                nodes = nodes if int(number) in nodes else self._nodes_of_ranks()
                found.append((nodes.get(int(number), 0), int(number), stream))
        return sorted(found, key=lambda source: (source[1] is not None, source[1] or 0, source[0], source[2]))

    def _nodes_of_ranks(self) -> dict[int, int]:
        events = files.EventReader(self.job_dir).new()
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
        """Yield the lines that are whole now that `end` bytes are written."""
        if self.stream is None:
            try:
                self.stream = open(self.path, "rb", opener=files.regular)  # noqa: SIM115 - it stays open from piece to piece
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
        """Yield what is left, to the last byte."""
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
        """Close the file; it can be gone on with."""
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
        """Say how much is gone, and go on with the first whole line behind it."""
        gone = cut - self.offset
        self.offset, self.partial, self.is_in_line = cut, b"", True
        return self._line(b"jobsubmit: %d bytes are gone here: a log keeps its newest part only" % gone)

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
        """Return a line as a terminal would show it: what was drawn over is gone."""
        return self.moment, self.source, line.rstrip(b"\r").rpartition(b"\r")[2]


def last_lines(
    job_dir: str, node: int, rank: int | None, count: int, *, since: float = 0.0, size: int = 1 << 16
) -> list[str]:
    """Return the last non-empty lines of a rank, or of what its node says around its ranks, as text."""
    reader = LineReader(job_dir, lambda source: source[1] == rank and (rank is not None or source[0] == node))
    reader.last(size)
    found = [*reader.new(), *reader.rest()]
    reader.close()
    lines = [line.decode("utf-8", "replace") for moment, _, line in found if moment >= since]
    return [line for line in lines if line.strip()][-count:]
