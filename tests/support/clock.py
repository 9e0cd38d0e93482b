"""A clock that tests move: whoever sleeps lets it go on, and what is due by then happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Stand in for the module `time`, where `monkeypatch.setattr(module, "time", clock)` puts it."""

    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC
    CLOCK_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    gmtime, strftime = staticmethod(time.gmtime), staticmethod(time.strftime)

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = self.began = now
        self.longest = 3600.0
        self.wrong_by = 0.0  # the clock on the wall, since somebody has set it
        self.waiting: list[tuple[float, Callable[[], Any]]] = []

    @property
    def passed(self) -> float:
        """Return the seconds since the clock was made."""
        return self.now - self.began

    def at(self, seconds: float, act: Callable[[], Any]) -> None:
        """Have something happen so many seconds after the clock was made."""
        self.waiting.append((self.began + seconds, act))
        self.waiting.sort(key=lambda entry: entry[0])

    def sleep(self, seconds: float) -> None:
        """Go on."""
        until = self.now + seconds
        assert until - self.began < self.longest, "nothing ends this"
        while self.waiting and self.waiting[0][0] <= until:
            due, act = self.waiting.pop(0)
            self.now = max(self.now, due)
            act()
        self.now = until

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return self.now + self.wrong_by

    def monotonic(self) -> float:
        """Return the seconds since some moment."""
        return self.now

    def clock_gettime(self, _: int) -> float:
        """Return the seconds since some moment."""
        return self.now

    def time_ns(self) -> int:
        """Return the nanoseconds since the epoch."""
        return int(self.time() * 1e9)
