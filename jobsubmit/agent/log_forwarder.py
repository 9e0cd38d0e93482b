"""Forward a node's lines to stdout, for a platform that keeps one log per node: each with its time, number and rank.

A line is `TIME NUMBER [rank 3] TEXT` or `TIME NUMBER [node 0] TEXT`; a `!` before the `]` marks a line of stderr. The
numbers count from 1. A log may end with `TIME NUMBER [end 0] STATUS`, the node's status as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time

from .logs.reading import LineReader

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Literal

    from .logs.index import Line
    from .protocol import NodeStatus

TAGGED = re.compile(rb"(\d+\.\d+) (\d+) \[(node|rank|end) (\d+)(!?)\] (.*)", re.DOTALL)
END = b"end"
_LOOK_SECONDS = 0.1
_LONGEST_STATUS = 4000  # bytes; Kubernetes keeps 4096
_LEFT_OUT: tuple[Literal["watcher", "restarts", "resizes", "pid", "port", "checkpoint_dir", "addresses"], ...]
_LEFT_OUT = ("watcher", "restarts", "resizes", "pid", "port", "checkpoint_dir", "addresses")


class LogForwarder(threading.Thread):
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
                self._forward(line)
            sys.stdout.flush()
            self.pause()
        for line in self.reader.rest():
            self._forward(line)
        sys.stdout.flush()

    def _forward(self, line: Line) -> None:
        self.number += 1
        data = tag_line(line, self.number)
        sys.stdout.buffer.write(data)
        self.on_line(data)

    def on_line(self, data: bytes) -> None:
        """Called for each forwarded line, for subclasses."""

    def pause(self) -> None:
        """Called between two reads, for subclasses."""

    def finish(self) -> None:
        """Wait until all lines are forwarded."""
        self.is_over.set()
        self.join()

    def report_end(self, node: int, status: bytes) -> None:
        """Write the status of the node, after all its lines."""
        sys.stdout.buffer.write(b"%.3f %d [end %d] %s\n" % (time.time(), self.number + 1, node, status))
        sys.stdout.flush()


def tag_line(line: Line, number: int) -> bytes:
    """Return a line in the form of the platform's log."""
    moment, (node, rank, stream), text = line
    whose = "node %d" % node if rank is None else "rank %d" % rank
    mark = "!" if stream == "stderr" else ""
    return b"%.3f %d [%s%s] %s\n" % (moment, number, whose.encode(), mark.encode(), text)


def shorten_status(status: NodeStatus) -> bytes:
    """Return a status as JSON, shortened to what one line of a log, or Kubernetes, can hold."""
    kept = status.copy()
    for name in _LEFT_OUT:
        kept.pop(name, None)
    failure = kept.get("failure")
    if failure:
        kept["failure"] = failure = failure.copy()
        failure.pop("words", None)
    while failure and len(_bytes(kept)) > _LONGEST_STATUS and failure["last_lines"]:
        failure["last_lines"] = failure["last_lines"][1:]
    if len(_bytes(kept)) > _LONGEST_STATUS:
        kept.update({"message": kept["message"][:500], "failure": None, "notes": []})
    return _bytes(kept)


def _bytes(value: NodeStatus) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
