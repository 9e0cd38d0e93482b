"""Record which logs have grown, and limit their size."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

from ..atomic_write import is_full, replace_file
from ..events import append_event
from ..job_directory import JobDirectory
from .index import RECORD_BYTES, pack_record

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .index import Source

_KEEP_SIZE_AND_PUNCH_HOLE = 3
_PAGE = 4096


class IndexWriter:
    """Records when each log grew; frees the disk space of the oldest part of a log that exceeds the limit."""

    def __init__(self, job_dir: str, limit: int) -> None:
        self.job_dir, self.files, self.limit = job_dir, JobDirectory(job_dir), limit
        self.ends: dict[str, int] = {}
        self.cuts: dict[str, int] = {}
        self.can_cut = sys.platform == "linux"
        self.grown_at = time.monotonic()

    def note(self, sources: Iterable[Source]) -> None:
        """Record which logs have grown since the last call."""
        now, records = time.time(), b""
        for source in sources:
            path = self.files.log_of(*source)
            try:
                size = os.stat(path).st_size
            except FileNotFoundError:
                continue
            if size > self.ends.get(path, 0):
                self.ends[path] = size
                records += pack_record(source, size, now)
                if self.can_cut and size - self.cuts.get(os.path.basename(path), 0) > self.limit:
                    self._cut(path, size)
        if records:
            self.grown_at = time.monotonic()
            self._append(records)

    def _append(self, records: bytes) -> None:
        """Append to the index, whole records only; what a full disk does not accept follows with the next record."""
        try:
            with open(self.files.log_index, "ab", buffering=0) as index:
                whole = index.tell() // RECORD_BYTES * RECORD_BYTES
                if whole != index.tell():
                    index.truncate(whole)
                written = index.write(records) or 0
                if written < len(records):
                    index.truncate(whole + written // RECORD_BYTES * RECORD_BYTES)
        except OSError as error:
            if not is_full(error):
                raise

    def _cut(self, path: str, size: int) -> None:
        """Punch a hole over the oldest part of a log: this disturbs no writer, and moves no offset."""
        end = (size - self.limit // 2) // _PAGE * _PAGE
        self.cuts[os.path.basename(path)] = end
        replace_file(self.files.log_cuts, json.dumps(self.cuts))  # before the hole is there, so that nobody reads it
        libc = ctypes.CDLL(None, use_errno=True)
        with open(path, "r+b") as log:
            done = libc.fallocate(log.fileno(), _KEEP_SIZE_AND_PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(end))
        if done != 0:
            self.can_cut = False
            os.remove(self.files.log_cuts)
            append_event(self.job_dir, "logs_not_capped", file=os.path.basename(path))
