"""Temporary folders: a process removes its own, and later those that killed processes left."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "jobsubmit-scratch-"
_YOUNG_SECONDS = 60  # it may not have its lock yet


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new temporary folder. It is removed at the end, or, if this process is killed, by a later one."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # without locks it is removed with its owner only
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(folder)
        finally:
            os.close(descriptor)


def _remove_abandoned() -> None:
    """Remove our folders whose lock nobody holds: a lock ends with its process, however that ends."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_ours and time.time() - status.st_mtime > _YOUNG_SECONDS and _is_free(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
