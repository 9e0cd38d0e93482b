"""Waiting for a thread: a signal that another thread takes ends it, too."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

import pytest

from jobsubmit.common.waiting import join


class _HeardError(Exception):
    pass


def test_a_signal_that_another_thread_takes_is_heard() -> None:
    def hear(number: int, frame: FrameType | None) -> None:
        raise _HeardError

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        time.sleep(0.5)  # until somebody waits for this thread
        os.kill(os.getpid(), signal.SIGUSR1)
        may_end.wait(5)

    may_end = threading.Event()
    earlier = signal.signal(signal.SIGUSR1, hear)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    thread = threading.Thread(target=work)
    thread.start()
    try:
        began = time.monotonic()
        with pytest.raises(_HeardError):
            join(thread)
        assert time.monotonic() - began < 4
    finally:
        may_end.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, earlier)
