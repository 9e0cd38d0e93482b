"""What a process measured, in a file of its own: one JSON document a line, written at once, so that no crash loses it.

The first line says whose the file is. Each further one is a mapping with "event", or a row about one step:

    [series, number, end, step, forward, backward, communication, overlap, own]

in whole microseconds; `end` counts from the first line's "t". A series is one DistributedDataParallel, or one `sync` of
jobsubmit.node. What was not sampled is null. `own` is what the timing itself has cost since the row before.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FOLDER = "timing"
PRIVATE = "_jobsubmit_timing"  # the name under which the hook loads this package
_ROWS_A_STRIDE = 10_000  # then every tenth step is written, then every hundredth, …: a file stays below some MB
_STRIDE_FACTOR = 10


class Recorder:
    """Write the file of this process."""

    def __init__(self, job_dir: str, rank: int, node: int, kind: str) -> None:
        folder = os.path.join(job_dir, FOLDER)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "rank-%d.%d.jsonl" % (rank, os.getpid()))
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.rank, self.kind = rank, kind
        self.began, self.began_ns = time.time(), time.perf_counter_ns()
        self.is_on = True
        self.series = 0
        self._write(
            {
                "timing": 1,
                "t": self.began,
                "rank": rank,
                "node": node,
                "attempt": int(os.environ.get("JOBSUBMIT_RESTART_COUNT") or 0),
                "restart": int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
                "world": int(os.environ.get("WORLD_SIZE") or 0),
            }
        )

    def now(self) -> int:
        """Return the microseconds since the first line."""
        return (time.perf_counter_ns() - self.began_ns) // 1000

    def event(self, event: str, **fields: object) -> None:
        """Note that something happened, now."""
        self._write({"event": event, "t": time.time(), **fields})

    def new_series(self, **fields: object) -> Series:
        """Return a new series of steps; its fields say what is measured."""
        number, self.series = self.series, self.series + 1
        self.event("series", series=number, **fields)
        return Series(self, number)

    def off(self, why: str) -> None:
        """End the timing, and say so once: the training goes on."""
        if self.is_on:
            self.is_on = False
            self.event("off", why=why)
            if self.rank == 0:
                sys.stderr.write("jobsubmit: the timing is off: %s; the training goes on without it\n" % why)

    def row(self, values: list[Any]) -> None:
        """Write a row."""
        self._write(values)

    def _write(self, value: Any) -> None:
        os.write(self.descriptor, json.dumps(value, separators=(",", ":")).encode() + b"\n")


class Series:
    """Write the rows of one series, of a long one only some: the same ones in every process."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self.recorder, self.number = recorder, number
        self.rows, self.stride = 0, 1
        self.own_ns = 0

    def row(self, step: int, *values: int | None) -> None:
        """Write what was measured of a step: step, forward, backward, communication, overlap, in microseconds."""
        if step % self.stride:
            return
        self.rows += 1
        if self.rows % _ROWS_A_STRIDE == 0:
            self.stride *= _STRIDE_FACTOR
        self.recorder.row([self.number, step, self.recorder.now(), *values, self.own_ns // 1000])
        self.own_ns = 0


def files_of(job_dir: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files that the processes of a node wrote."""
    folder = os.path.join(job_dir, FOLDER)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), "rb") as stream:
            yield name, stream.read()


def current() -> Recorder | None:
    """Return the recorder of this process, if it has one that is on."""
    module = sys.modules.get(PRIVATE + ".install")
    found: Recorder | None = getattr(module, "recorder", None)
    return found if found is not None and found.is_on else None
