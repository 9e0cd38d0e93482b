"""The timing file of a process: one JSON document per line, written at once, so that a crash loses nothing.

The first line names the process. Each further line is a mapping with "event", or a row about one step:

    [series, number, end, step, forward, backward, communication, overlap, own]

in whole microseconds; `end` counts from the first line's "t", `step` is the mean since the previous measured step. A
series is one DistributedDataParallel, or one `jobsubmit.profiling.sync`. `own` is what the timing itself has cost since
the previous row.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from .. import node_contract as contract
from ..atomic_write import read_file

FOLDER = "timing"
_INSTALLED = "_jobsubmit_agent.timing.install"  # the name under which the rank reporter loads it
_ROWS_A_STRIDE = 10_000  # then every tenth step is written, then every hundredth, …: a file stays below some MB
_STRIDE_FACTOR = 10
_MOST_EVENTS = 3000


class Recorder:
    """Writes the timing file of this process; errors are reported once, and never raised."""

    def __init__(self, job_dir: str, rank: int, node: int, kind: str) -> None:
        folder = os.path.join(job_dir, FOLDER)
        os.makedirs(folder, exist_ok=True)
        self.pid = os.getpid()
        path = os.path.join(folder, "rank-%d.%d.jsonl" % (rank, self.pid))
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.rank, self.kind = rank, kind
        self.began, self.began_ns = time.time(), time.perf_counter_ns()
        self.is_on = True
        self.series = self.events = 0
        self.write(
            {
                "timing": 1,
                "t": self.began,
                "rank": rank,
                "node": node,
                "attempt": int(os.environ.get(contract.RESTART_COUNT) or 0),
                "restart": int(os.environ.get(contract.TORCH_RESTARTS) or 0),
                "world": int(os.environ.get(contract.WORLD_SIZE) or 0),
            }
        )

    def now(self) -> int:
        """Return the microseconds since the first line."""
        return (time.perf_counter_ns() - self.began_ns) // 1000

    def event(self, event: str, **fields: object) -> None:
        """Record an event, now."""
        self.events += 1
        if self.events <= _MOST_EVENTS:
            self.write({"event": event, "t": time.time(), **fields})

    def new_series(self, **fields: object) -> Series:
        """Return a new series of steps; its fields describe what is measured."""
        number, self.series = self.series, self.series + 1
        self.event("series", series=number, **fields)
        return Series(self, number)

    def off(self, why: str) -> None:
        """End the timing, and report it once per node: the training continues."""
        if not self.is_on:
            return
        self.write({"event": "off", "t": time.time(), "why": why})
        self.is_on = False
        if _is_first_of_node(self.rank):
            with suppress(AttributeError, OSError, ValueError):  # it may be closed
                sys.stderr.write("jobsubmit: the timing is off: %s; the training continues without it\n" % why)

    def write(self, value: object) -> None:
        """Write one document."""
        if not self.is_on or os.getpid() != self.pid:  # a helper that was forked has the same file open
            return
        try:
            os.write(self.descriptor, json.dumps(value, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self.descriptor = os.open(os.devnull, os.O_WRONLY)
            self.off("its file cannot be written: %s" % error)


def _is_first_of_node(rank: int) -> bool:
    local_rank = os.environ.get(contract.LOCAL_RANK)
    return int(local_rank) == 0 if local_rank else rank % int(os.environ.get(contract.NPROC_PER_NODE) or 1) == 0


class Series:
    """Writes the rows of one series; of a long one only some rows, the same in every process."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self.recorder, self.number = recorder, number
        self.written, self.stride = 0, 1
        self.own_ns = 0

    def wants(self, step: int) -> bool:
        """Return whether a step is written."""
        return step % self.stride == 0

    def row(self, step: int, *values: int | None) -> None:
        """Write the times of a step: step, forward, backward, communication, overlap, in microseconds."""
        if self.wants(step):
            self.recorder.write([self.number, step, self.recorder.now(), *values, self.own_ns // 1000])
            self.own_ns = 0
            self.count(1)

    def count(self, parts: int) -> None:
        """Count what was written about a step, in units of a row."""
        self.written += parts
        if self.written >= _ROWS_A_STRIDE:
            self.written = 0
            self.stride *= _STRIDE_FACTOR


def read_files(job_dir: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the timing files that the processes of a node wrote."""
    folder = os.path.join(job_dir, FOLDER)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with suppress(OSError):
            yield name, read_file(os.path.join(folder, name))


def current_recorder() -> Recorder | None:
    """Return the recorder of this process, if the process has an active one."""
    module = sys.modules.get(_INSTALLED)
    found: Recorder | None = getattr(module, "recorder", None)
    return found if found is not None and found.is_on and found.pid == os.getpid() else None
