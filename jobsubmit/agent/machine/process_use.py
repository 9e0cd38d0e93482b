"""What processes use of a machine: CPU time, memory, input and output, from /proc."""

from __future__ import annotations

import os

from .. import processes
from ..recovery.oom_detector import CGROUPS, read_groups

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping

_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_KILO = 1024
_OWN_TIME, _WITH_CHILDREN = slice(11, 13), slice(11, 15)  # of the fields of /proc/PID/stat


def read_use(roots: Mapping[str, int]) -> dict[str, list[float]]:
    """Return of each named process and its descendants: CPU seconds so far, bytes of memory, bytes read and written.

    Memory that several of them share counts once.
    """
    trees = processes.find_trees(roots.values())
    found = {}
    for name, root in roots.items():
        fields = processes.read_stat(root)
        if not fields:
            continue
        seconds = sum(map(int, fields[_WITH_CHILDREN])) / _TICK
        seconds += sum(sum(map(int, processes.read_stat(pid)[_OWN_TIME])) for pid in trees[root]) / _TICK
        family = [root, *trees[root]]
        memory = _resident(root) if len(family) == 1 else sum(map(_proportional, family))
        read, written = map(sum, zip(*map(_transferred, family)))
        found[name] = [round(seconds, 2), memory, read, written]
    return found


def _resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    try:
        with open("/proc/%d/statm" % pid, "rb") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _proportional(pid: int) -> int:
    """Return the resident bytes of a process, of shared ones only its part."""
    try:
        with open("/proc/%d/smaps_rollup" % pid, "rb") as stream:
            return next(int(line.split()[1]) * _KILO for line in stream if line.startswith(b"Pss:"))
    except (OSError, StopIteration, ValueError):
        return _resident(pid)


def _transferred(pid: int) -> tuple[int, int]:
    """Return the bytes that a process has read from and written to storage."""
    try:
        with open("/proc/%d/io" % pid, "rb") as stream:
            fields = dict(line.split(b": ") for line in stream.read().splitlines())
        return int(fields[b"read_bytes"]), int(fields[b"write_bytes"])
    except (OSError, KeyError, ValueError):
        return 0, 0


class Memory:
    """The memory that a job may use on this machine: of its control groups, or of the whole machine."""

    def __init__(self, root: str = CGROUPS, own: str = "/proc/self/cgroup", whole: str = "/proc/meminfo") -> None:
        self.whole = whole
        self.limit, self.group = _read_meminfo(whole).get(b"MemTotal", 0), ""
        for folder in _memory_groups(root, own):
            limit = _read_number(os.path.join(folder, "memory.max"))
            if limit and limit < self.limit:
                self.limit, self.group = limit, folder

    def used(self) -> int:
        """Return the bytes in use, without what the kernel can take back at once."""
        if self.group:
            return max(0, _read_number(os.path.join(self.group, "memory.current")) - self._reclaimable())
        known = _read_meminfo(self.whole)
        return max(0, known.get(b"MemTotal", 0) - known.get(b"MemAvailable", 0))

    def _reclaimable(self) -> int:
        try:
            with open(os.path.join(self.group, "memory.stat"), "rb") as stream:
                fields = dict(line.split() for line in stream)
            return int(fields[b"inactive_file"])
        except (OSError, KeyError, ValueError):
            return 0


def _memory_groups(root: str, own: str) -> list[str]:
    """Return the folders of our control group (version 2) and of those above it."""
    found = [root]
    for number, controllers, path in read_groups(own):
        parts = [part for part in path.split("/") if part] if number == "0" and not controllers else []
        found += [os.path.join(root, *parts[: count + 1]) for count in range(len(parts))]
    return found


def _read_number(path: str) -> int:
    try:
        with open(path, "rb") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0


def _read_meminfo(path: str) -> dict[bytes, int]:
    try:
        with open(path, "rb") as stream:
            fields = (line.split() for line in stream)
            return {field[0].rstrip(b":"): int(field[1]) * _KILO for field in fields if len(field) > 1}
    except (OSError, ValueError):
        return {}
