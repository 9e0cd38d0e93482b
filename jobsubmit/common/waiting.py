"""Wait so that signals are handled, and long enough that a loop costs little."""

from __future__ import annotations

import threading
import time

_LOOK_SECONDS = 0.2


def join(thread: threading.Thread) -> None:
    """Wait for a thread in short intervals: a signal that another thread receives does not wake the main thread."""
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)


def rest_after(began: float, share: float) -> float:
    """Return the seconds to wait after work, so that this thread uses at most a share of a core.

    `began` is time.thread_time() before the work.
    """
    return (time.thread_time() - began) / share
