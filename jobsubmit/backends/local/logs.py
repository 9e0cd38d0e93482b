"""Read the logs of a local job: whole lines, each once, tagged with node and rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from jobsubmit.backends import LogLine
from jobsubmit.backends.local.gang import files

_RANK_FILE = re.compile(r"rank-(\d+)\.log")
_NODE_FILE = re.compile(r"node-(\d+)\.log")
_READ = 1 << 20


class _Source:
    def __init__(self, file: Path, node: int, rank: int | None) -> None:
        self.file, self.node, self.rank = file, node, rank
        self.offset = 0
        self.partial = b""

    def new_lines(self) -> Iterator[LogLine]:
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            while block := stream.read(_READ):
                self.offset += len(block)
                *lines, self.partial = (self.partial + block).split(b"\n")
                yield from (self._line(line) for line in lines)

    def rest(self) -> Iterator[LogLine]:
        if self.partial:
            yield self._line(self.partial)
            self.partial = b""

    def _line(self, line: bytes) -> LogLine:
        return LogLine(self.node, self.rank, line.decode("utf-8", "replace").rstrip("\r"))


class LogReader:
    """Follow every log file of a job that the filter lets through, new ones too."""

    def __init__(self, job_dir: Path, node: int | None, rank: int | None) -> None:
        self.job_dir = job_dir
        self.node, self.rank = node, rank
        self.events = files.EventReader(str(job_dir))
        self.node_of_rank: dict[int, int] = {}
        self.sources: dict[Path, _Source] = {}

    def new_lines(self) -> Iterator[LogLine]:
        """Yield what was written since the last call, file by file."""
        self._find()
        for source in self.sources.values():
            yield from source.new_lines()

    def rest(self) -> Iterator[LogLine]:
        """Yield the unfinished last lines; for the end of a job."""
        for source in self.sources.values():
            yield from source.rest()

    def _find(self) -> None:
        for event in self.events.new():
            if event["event"] == "rank_start":
                self.node_of_rank[event["rank"]] = event["node"]
        for file in sorted((self.job_dir / files.LOGS).glob("*.log"), key=_by_number):
            if file not in self.sources and (source := self._source(file)):
                self.sources[file] = source

    def _source(self, file: Path) -> _Source | None:
        if match := _NODE_FILE.fullmatch(file.name):
            node, rank = int(match[1]), None
        elif (match := _RANK_FILE.fullmatch(file.name)) and int(match[1]) in self.node_of_rank:
            rank = int(match[1])
            node = self.node_of_rank[rank]
        else:
            return None
        wanted = self.node in (None, node) and self.rank in (None, rank)
        return _Source(file, node, rank) if wanted else None


def _by_number(file: Path) -> tuple[bool, int]:
    kind, _, number = file.stem.partition("-")
    return kind != "node", int(number) if number.isdigit() else 0
