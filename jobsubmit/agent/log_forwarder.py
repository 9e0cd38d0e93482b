"""Tell a node's lines on stdout, where an engine keeps one log a node: each with its time, its number and its rank.

A line is `TIME NUMBER [rank 3] TEXT` or `TIME NUMBER [node 0] TEXT`; with `!` before the `]` it is of stderr; the
numbers count from 1. A log may end with `TIME NUMBER [end 0] STATUS`, what became of the node as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time

from .logs.index import LineReader

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from .logs.index import Line

TAGGED = re.compile(rb"(\d+\.\d+) (\d+) \[(node|rank|end) (\d+)(!?)\] (.*)", re.DOTALL)
END = b"end"
_LOOK_SECONDS = 0.1
_LONGEST_STATUS = 4000  # bytes; Kubernetes keeps 4096
_TOLD = ("state", "reason", "message", "failure", "started", "ended", "attempt", "last_step", "notes")


class Teller(threading.Thread):
    """Write each line to stdout as soon as it is known."""

    def __init__(self, job_dir: str) -> None:
        super().__init__(daemon=True)
        self.job_dir = job_dir
        self.reader = LineReader(job_dir)
        self.is_over = threading.Event()
        self.number = 0

    def run(self) -> None:
        while not self.is_over.wait(_LOOK_SECONDS):
            for line in self.reader.new():
                self._tell(line)
            sys.stdout.flush()
            self.pause()
        for line in self.reader.rest():
            self._tell(line)
        sys.stdout.flush()

    def _tell(self, line: Line) -> None:
        self.number += 1
        data = tagged(line, self.number)
        sys.stdout.buffer.write(data)
        self.told(data)

    def told(self, data: bytes) -> None:
        """Do more with a line that was told."""

    def pause(self) -> None:
        """Do what is due between two looks."""

    def finish(self) -> None:
        """Return when all is told."""
        self.is_over.set()
        self.join()

    def end(self, node: int, status: bytes) -> None:
        """Tell what became of the node, after all is told."""
        sys.stdout.buffer.write(b"%.3f %d [end %d] %s\n" % (time.time(), self.number + 1, node, status))
        sys.stdout.flush()


def tagged(line: Line, number: int) -> bytes:
    """Return a line as it stands in the log of a node."""
    moment, (node, rank, stream), text = line
    whose = "node %d" % node if rank is None else "rank %d" % rank
    mark = "!" if stream == "stderr" else ""
    return b"%.3f %d [%s%s] %s\n" % (moment, number, whose.encode(), mark.encode(), text)


def shortened(status: dict[str, Any]) -> bytes:
    """Return as much of a status as one line of a log, or Kubernetes, keeps."""
    kept = {name: value for name, value in status.items() if name in _TOLD}
    failure = dict(kept.get("failure") or {})
    failure.pop("words", None)
    if failure:
        kept["failure"] = failure
    while len(_bytes(kept)) > _LONGEST_STATUS and failure.get("last_lines"):
        failure["last_lines"] = failure["last_lines"][1:]
    if len(_bytes(kept)) > _LONGEST_STATUS:
        return _bytes({**kept, "message": kept["message"][:500], "failure": None, "notes": []})
    return _bytes(kept)


def _bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
