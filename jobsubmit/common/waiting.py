"""Wait so that signals are handled."""

from __future__ import annotations

import threading

_LOOK_SECONDS = 0.2


def join(thread: threading.Thread) -> None:
    """Wait for a thread in short intervals: a signal that another thread receives does not wake the main thread."""
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
