"""Whether a process still lives, told by the lock it holds: a lock ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jobsubmit.errors import UsageError


def is_locked(file: Path) -> bool:
    """Tell whether a process holds the lock of a file; a file that is not there is not locked."""
    try:
        with file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@contextmanager
def held(file: Path, waiting: Callable[[], object]) -> Iterator[str]:
    """Hold the lock of a file, `waiting` for whoever holds it now; yield its identity.

    The identity is no other lock's, on this machine or elsewhere, until this machine starts anew: whoever holds the
    lock knows that all earlier holders have ended. Raises UsageError where the file cannot be made.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("ab")
    except OSError as error:
        hint = "make room there, or name another folder with JOBSUBMIT_STATE_DIR"
        raise UsageError(f"{file.parent} cannot be used: {error.strerror}", hint) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError:  # this file system has no locks: nothing is known of others
            yield uuid.uuid4().hex
            return
        status = os.fstat(stream.fileno())
        yield hashlib.sha256(f"{_boot()} {status.st_dev} {status.st_ino}".encode()).hexdigest()[:32]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename
