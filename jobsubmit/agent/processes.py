"""Control descendant processes: adopt orphans, die with the parent, kill until none is left."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
_prctl = ctypes.CDLL(None, use_errno=True).prctl if _LINUX else None


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, so that `kill_all` can verify that none is left."""
    if _prctl:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(number: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends."""
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def find_descendants(of: Iterable[int] = ()) -> list[int]:
    """Return the pids of the descendants of some processes, by default of this one; empty outside Linux."""
    return _below(list(of) or [os.getpid()], _children_of_all())


def find_trees(roots: Iterable[int]) -> dict[int, list[int]]:
    """Return the pids of the descendants of each of some processes; empty outside Linux."""
    children = _children_of_all()
    return {root: _below([root], children) for root in roots}


def _below(queue: list[int], children: dict[int, list[int]]) -> list[int]:
    found = []
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def find_children() -> list[int]:
    """Return the pids of the children of this process, including adopted orphans; empty outside Linux."""
    return _children_of_all().get(os.getpid(), [])


def _children_of_all() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if _LINUX else ():
        fields = read_stat(int(name)) if name.isdigit() else []
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    return children


def read_stat(pid: int) -> list[bytes]:
    """Return the fields of a process in /proc, from its state on (see proc(5)); empty if it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            return stream.read().rpartition(b")")[2].split()
    except OSError:
        return []


def start_time_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended or is a zombie."""
    fields = read_stat(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def kill_all(known: Iterable[int] = (), seconds: float = 10.0) -> bool:
    """Send SIGKILL to every descendant (and to the known pids) until no child is left."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in {*find_descendants(), *(() if _LINUX else known)}:
            send(pid, signal.SIGKILL)
        if not reap():
            return True
        time.sleep(0.01)
    return False


def reap() -> bool:
    """Collect every ended child; return whether any child still runs."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def send(pid: int, number: int) -> None:
    """Send a signal to one process, if it still exists."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def send_group(pgid: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    send(-pgid, number)
