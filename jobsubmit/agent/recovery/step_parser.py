"""How far the training is, as its own lines tell: the number behind the word `step`."""

from __future__ import annotations

import os
import re

from ..job_directory import STREAMS, JobDirectory

_STEP = re.compile(rb"\bstep\W{1,3}(\d{1,12})\b", re.IGNORECASE)
_MOST_BYTES = 1 << 16


class StepParser:
    """Follow the step numbers in the logs of the ranks."""

    def __init__(self, job_dir: str) -> None:
        self.files = JobDirectory(job_dir)
        self.offsets: dict[str, int] = {}
        self.first: int | None = None  # of this attempt
        self.last: int | None = None

    def begin_attempt(self) -> None:
        """Forget the steps of the attempt before."""
        self.first = self.last = None

    def look(self, ranks: dict[int, int]) -> bool:
        """Read what was written since the last look; return whether a step was told. `ranks` are rank → node."""
        told = False
        for rank, node in ranks.items():
            for stream in STREAMS:
                for step in self._steps(self.files.log_of(node, rank, stream)):
                    told = True
                    self.first = step if self.first is None else min(self.first, step)
                    self.last = step if self.last is None else max(self.last, step)
        return told

    def _steps(self, path: str) -> list[int]:
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return []
        offset = max(self.offsets.get(path, 0), size - _MOST_BYTES)
        if size <= offset:
            return []
        with open(path, "rb") as log:
            log.seek(offset)
            data = log.read(size - offset)
        end = data.rfind(b"\n") + 1
        self.offsets[path] = offset + end
        return [int(found) for found in _STEP.findall(data[:end])]
