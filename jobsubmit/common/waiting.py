"""Waiting so that signals are heard."""

from __future__ import annotations

import threading

_LOOK_SECONDS = 0.2


def join(thread: threading.Thread) -> None:
    """Wait for a thread, and look up now and then: a signal that another thread takes does not wake the main one."""
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
