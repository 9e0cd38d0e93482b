"""The queue of a host: one job of a user at a time, in the order of submission.

Every job that waits for the host holds the lock of its ticket; the job that has the host holds the lock of `taken`. A
lock ends with its process, so a job that died leaves its files but not the host.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket

from ..atomic_write import make_private
from ..job_directory import USUAL_ROOT

_TAKEN = "taken"
_NOTHING = b"{}"


class HostQueue:
    """A job's place in the queue of this host."""

    def __init__(self, root: str, job_id: str, submitted: float) -> None:
        self.folder = os.path.join(root, "queue", socket.gethostname())
        make_private(self.folder)
        self.job_id = job_id
        self.ticket_name = "%017.3f-%s" % (submitted, job_id)
        self.ticket: int | None = _hold_ticket(os.path.join(self.folder, self.ticket_name))
        self.taken: int | None = None
        self.died = ""  # a job that had the host, and did not give it back

    def take(self) -> str:
        """Take the host; return why that fails, empty if it does not."""
        if self.taken is not None:
            return ""
        for name in sorted(os.listdir(self.folder)):
            if name >= self.ticket_name:
                break
            if name != _TAKEN and _is_held(os.path.join(self.folder, name)):
                return "job %s is before this one in its queue" % name.partition("-")[2]
        path = os.path.join(self.folder, _TAKEN)
        descriptor = _hold(path)
        if descriptor is None:
            return "job %s runs there" % _read(path).get("job_id", "?")
        before = _read(path).get("job_id", "")
        self.died = before if before != self.job_id else ""
        self.taken = descriptor
        _replace(descriptor, json.dumps({"job_id": self.job_id}).encode())
        return ""

    def release(self) -> None:
        """Give the host back, and keep the place in the queue."""
        if self.taken is not None:
            _replace(self.taken, _NOTHING)
            os.close(self.taken)
        self.taken = None

    def leave(self) -> None:
        """Give the host back, and leave the queue."""
        self.release()
        if self.ticket is not None:
            os.unlink(os.path.join(self.folder, self.ticket_name))
            os.close(self.ticket)
        self.ticket = None


def remove_queue() -> None:
    """Remove the files of the queue, once no job is left on this host."""
    root = os.path.expanduser(USUAL_ROOT)
    if not os.path.exists(os.path.join(root, "jobs")):
        shutil.rmtree(os.path.join(root, "queue"), ignore_errors=True)


def _hold(path: str) -> int | None:
    """Return a descriptor that holds the lock of a file; None if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _hold_ticket(path: str) -> int:
    """Return a descriptor that holds the lock of a new file, even if another job looks at it at this moment."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass  # the other took it for one of a dead job
        os.close(descriptor)


def _is_held(path: str) -> bool:
    """Return whether a job still waits; the ticket of a dead one is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return False


def _read(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return {}
    return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _replace(descriptor: int, data: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
