"""Many requests at once: threads that share a list of work, and end together at the first error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

from jobsubmit.common.waiting import join

T = TypeVar("T")

_MOST = 128
_SECONDS_A_THREAD = 0.00016
_BYTES_AT_ONCE = 64 << 20
_LAST_WAIT_SECONDS = 2


def threads_for(round_trip: float, fewest: int) -> int:
    """Return how many requests to keep under way, by the seconds that one on an idle connection takes."""
    return max(fewest, min(_MOST, int(round_trip / _SECONDS_A_THREAD)))


def run_all(items: Sequence[T], act: Callable[[T], object], size: Callable[[T], int], threads: int) -> None:
    """Act on every item, the large ones first; raise the first error once all threads have ended.

    Items whose sizes in bytes add up to more than a bound are not under way together: each is held in memory, and a
    slow connection could not transfer all of them in time.
    """
    work = _Work([(size(item), item) for item in items], act)
    crew = [threading.Thread(target=work.run, daemon=True) for _ in range(min(threads, len(items)))]
    try:
        for number, thread in enumerate(crew):
            try:
                thread.start()
            except RuntimeError:  # the system allows no more
                if number == 0:
                    raise
                del crew[number:]
        for thread in crew:
            join(thread)
    except BaseException:
        work.stop(None)
        deadline = time.monotonic() + _LAST_WAIT_SECONDS  # what is under way may end, a dead line may not hold us
        for thread in crew:
            if thread.ident is not None:
                thread.join(max(0, deadline - time.monotonic()))
        raise
    if work.error:
        raise work.error


class _Work(Generic[T]):
    def __init__(self, items: list[tuple[int, T]], act: Callable[[T], object]) -> None:
        items.sort(key=itemgetter(0))
        self.waiting, self.act = items, act
        self.changed = threading.Condition()
        self.under_way = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        while (taken := self._take()) is not None:
            share, item = taken
            try:
                self.act(item)
            except BaseException as error:
                self.stop(error)
            with self.changed:
                self.under_way -= share
                self.changed.notify_all()

    def _take(self) -> tuple[int, T] | None:
        """Return the largest item that is left, with its share of the bytes, once there is room for it."""
        with self.changed:
            while self.waiting:
                size, item = self.waiting[-1]
                share = min(size, _BYTES_AT_ONCE)
                if self.under_way + share <= _BYTES_AT_ONCE:
                    self.waiting.pop()
                    self.under_way += share
                    if not self.waiting:
                        self.changed.notify_all()
                    return share, item
                self.changed.wait()
            return None

    def stop(self, error: BaseException | None) -> None:
        with self.changed:
            self.error = self.error or error
            self.waiting = []
            self.changed.notify_all()
