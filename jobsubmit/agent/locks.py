"""Whether another process holds the lock of a file: a lock ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os

INPUT_LOCK = ".lock"  # the end of the file that is locked while somebody needs a cached input


def is_locked(path: str, probe: int = fcntl.LOCK_EX) -> bool:
    """Return whether a lock is held; False if there is no such file. Raises OSError if its file system has no locks.

    With `probe` LOCK_SH, those who ask at the same time do not see each other, and holders must hold LOCK_EX.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, probe | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
