"""Many requests at once: threads that share a list of work, and end together at the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

_FEWEST, _MOST = 16, 128
_SECONDS_A_THREAD = 0.0003
_LARGE = 1 << 20
_BYTES_AT_ONCE = 128 << 20
_LAST_WAIT_SECONDS = 3


def threads_for(round_trip: float) -> int:
    """Return how many requests to keep under way, by the seconds that one on an idle line takes."""
    return max(_FEWEST, min(_MOST, int(round_trip / _SECONDS_A_THREAD)))


def run_all(items: Sequence[T], act: Callable[[T], object], size: Callable[[T], int], threads: int) -> None:
    """Act on every item, the large ones first; raise the first error once all threads have ended.

    Items whose sizes in bytes add up to more than a bound are not under way together, for each is held in memory.
    """
    work = _Work(sorted(items, key=size, reverse=True), act, size)
    crew = [threading.Thread(target=work.run, daemon=True) for _ in range(min(threads, len(items)))]
    for thread in crew:
        thread.start()
    try:
        for thread in crew:
            thread.join()
    except BaseException:
        work.stop()
        for thread in crew:
            thread.join(_LAST_WAIT_SECONDS)  # what is under way may end, a dead line may not hold us
        raise
    if work.error:
        raise work.error


class _Work(Generic[T]):
    def __init__(self, items: Sequence[T], act: Callable[[T], object], size: Callable[[T], int]) -> None:
        self.items, self.act, self.size = iter(items), act, size
        self.changed = threading.Condition()
        self.under_way = 0
        self.stopped = False
        self.error: BaseException | None = None

    def run(self) -> None:
        while True:
            with self.changed:
                item = None if self.stopped else next(self.items, None)
            if item is None:
                return
            size = self.size(item)
            try:
                if size > _LARGE:
                    self._act_in_turn(item, size)
                else:
                    self.act(item)
            except BaseException as error:
                self.error = self.error or error
                self.stop()

    def _act_in_turn(self, item: T, size: int) -> None:
        share = min(size, _BYTES_AT_ONCE)
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.under_way + share <= _BYTES_AT_ONCE)
            if self.stopped:
                return
            self.under_way += share
        try:
            self.act(item)
        finally:
            with self.changed:
                self.under_way -= share
                self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
