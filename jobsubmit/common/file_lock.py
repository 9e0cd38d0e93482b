"""File locks, which show whether a process is alive: a lock ends with its holder, however the holder ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jobsubmit.agent.atomic_write import make_private, open_regular
from jobsubmit.errors import UsageError


def is_locked(file: Path) -> bool | None:
    """Return whether a process holds the lock of a file, None if the file system has no locks or denies access.

    A file that does not exist is not locked.
    """
    try:
        with _open(file) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _open(file: Path) -> BinaryIO:
    """Open a file to lock it; NFS wants one that can be written."""
    try:
        return open(file, "r+b", opener=open_regular)
    except PermissionError:
        return open(file, "rb", opener=open_regular)


@contextmanager
def hold_lock(file: Path, waiting: Callable[[], object]) -> Iterator[str]:
    """Hold the lock of a file, and yield its identity; call `waiting` first if another process holds the lock.

    No other lock, on this machine or elsewhere, has this identity until this machine reboots: whoever holds the lock
    knows that all earlier holders have ended. Raises UsageError if the file cannot be created.
    """
    try:
        make_private(str(file.parent))
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.fchmod(descriptor, 0o600)  # another user who can open it can lock it
    except OSError as error:
        hint = "free space on its disk and make it writable, or set JOBSUBMIT_STATE_DIR to another folder"
        raise UsageError(f"{file.parent} cannot be used: {error.strerror}", hint) from error
    with os.fdopen(descriptor, "ab") as stream:
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
