"""Record what the processes of a node and its accelerators use, while a job runs.

A file holds one JSON document per line. The first names the node; `cores` is what this job may use, `memory` is in
bytes:

    {"machine": 1, "t": …, "node": 0, "attempt": 0, "cores": 16, "memory": 68719476736}

Then come samples: when, the bytes of memory in use, and of each rank (or of `node N`, for a job without ranks) its
node, the CPU seconds so far, bytes of memory, bytes read and bytes written so far; and the readings of accelerators.py:

    [1790000000.5, 21474836480, {"3": [1, 12.3, 1073741824, 0, 4096]}]
    {"t": 1790000001.0, "accelerators": [[0, 97.0, 34359738368, 85899345920, 612.3, 61.0]]}
"""

from __future__ import annotations

import json
import os
import time

from ..atomic_write import make_private
from ..job_directory import JobDirectory
from .accelerators import Accelerators
from .process_use import Memory, read_use

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
_ROWS_AT_A_PACE = 600  # then half as often, and so on: a file stays below some MB
_MOST_COST = 0.004  # of one core
_ACCELERATOR_PACE = 5.0  # at most so often


class MachineSampler:
    """Samples a node at intervals that grow; if the file cannot be written, the job goes on without samples."""

    def __init__(self, job_dir: str, node: int, attempt: int) -> None:
        self.folder = JobDirectory(job_dir).timing
        self.node, self.attempt = node, attempt
        self.memory, self.accelerators = Memory(), Accelerators()
        self.descriptor: int | None = None
        self.interval, self.rows = _FIRST_SECONDS, 0
        self.due = self.accelerators_due = 0.0

    def pids(self) -> list[int]:
        """Return the pids of the programs that run for the samples: they are no sign of life of the job."""
        return self.accelerators.pids()

    def is_due(self) -> bool:
        """Return whether it is time for the next sample."""
        return time.monotonic() >= self.due

    def sample(self, roots: Mapping[str, int], nodes: Mapping[str, int]) -> None:
        """Take a sample of the named processes and those below them, if one is due; `nodes` are the nodes they are on.

        On one machine there may be several emulated nodes.
        """
        now = time.monotonic()
        if now < self.due or not roots:
            return
        began = time.process_time()
        try:
            used = {name: [nodes[name], *use] for name, use in read_use(roots).items()}
            self._write([round(time.time(), 3), self.memory.used(), used])
            self._sample_accelerators(now)
        except Exception:  # whatever it is: samples must never end a job
            self.due = float("inf")
            return
        self.rows += 1
        if self.rows >= _ROWS_AT_A_PACE:
            self.rows, self.interval = 0, min(_LONGEST_SECONDS, self.interval * 2)
        self.due = now + max(self.interval, (time.process_time() - began) / _MOST_COST)

    def _sample_accelerators(self, now: float) -> None:
        readings = self.accelerators.read()
        if readings:
            self._write({"t": round(time.time(), 3), "accelerators": readings})
        if now >= self.accelerators_due:
            self.accelerators_due = now + max(self.interval, _ACCELERATOR_PACE)
            self.accelerators.start()

    def _write(self, value: object) -> None:
        if self.descriptor is None:
            self.descriptor = self._open()
        os.write(self.descriptor, json.dumps(value, separators=(",", ":")).encode() + b"\n")

    def _open(self) -> int:
        make_private(self.folder)
        path = os.path.join(self.folder, "machine-%d.%d.jsonl" % (self.node, self.attempt))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        head = {"machine": 1, "t": round(time.time(), 3), "node": self.node, "attempt": self.attempt}
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        head.update(cores=cores, memory=self.memory.limit)
        os.write(descriptor, json.dumps(head, separators=(",", ":")).encode() + b"\n")
        return descriptor

    def close(self) -> None:
        """Close the file, and end what runs for the samples."""
        self.accelerators.stop()
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        self.due = float("inf")
