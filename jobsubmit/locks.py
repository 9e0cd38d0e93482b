"""Whether a process still lives, told by the lock it holds: a lock ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
def held(file: Path) -> Iterator[None]:
    """Hold the lock of a file, after whoever holds it now."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
