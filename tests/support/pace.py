"""How slow this machine is while a test runs: a bound in seconds is meant for a machine that does nothing else.

Tests share two cores with each other, and a virtual machine shares its cores with strangers. A process of its own
does the same piece of work again and again, and notes how long each took: the bounds of the test are stretched by the
slowest of them. On an idle machine they are what the test says.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

IDLE_SECONDS = 0.04  # what the work takes on the idle machine that the bounds were written for, rounded up
PAUSE_SECONDS = 0.4


class Sample(NamedTuple):
    """How long a piece of work took, and how late the pause before it ended, in seconds."""

    work: float
    late: float


class Pace:
    """The pace of this machine since a test began."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def stretched(self, seconds: float) -> float:
        """Return what so many seconds of an idle machine are here."""
        samples = self._samples()
        slowest = max(sample.work for sample in samples)
        return seconds * max(1.0, slowest / IDLE_SECONDS) + max(sample.late for sample in samples)

    def _samples(self) -> list[Sample]:
        whole_lines = self.notes.read_text().rpartition("\n")[0].splitlines()
        return [Sample(*map(float, line.split())) for line in whole_lines]


@contextmanager
def measured(notes: Path) -> Iterator[Pace]:
    """Measure the pace of this machine until the block ends."""
    with notes.open("w") as stream, subprocess.Popen([sys.executable, "-I", __file__], stdout=stream) as sampler:
        while not notes.stat().st_size:
            time.sleep(0.01)
        try:
            yield Pace(notes)
        finally:
            sampler.kill()


def _print_samples() -> None:
    paused = PAUSE_SECONDS
    while True:
        began = time.monotonic()
        sum(number * number for number in range(700_000))
        worked = time.monotonic()
        print(worked - began, max(0.0, paused - PAUSE_SECONDS), flush=True)
        time.sleep(PAUSE_SECONDS)
        paused = time.monotonic() - worked


if __name__ == "__main__":
    _print_samples()
