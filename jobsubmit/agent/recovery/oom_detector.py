"""Detect whether the kernel has killed a process of the job because memory was full."""

from __future__ import annotations

import os

CGROUPS = "/sys/fs/cgroup"
GROUP_PREFIX = "jobsubmit-"  # of the control groups that hold a job's processes


class OomDetector:
    """Compares the kernel's count of such kills in our control group with the count at the start."""

    def __init__(self, root: str = CGROUPS, own: str = "/proc/self/cgroup") -> None:
        self.files = _event_files(root, own)
        self.before = self._count()

    def has_struck(self) -> bool:
        """Return whether the count has risen since the start; False if the kernel does not report it."""
        return self._count() > self.before

    def _count(self) -> int:
        total = 0
        for path in self.files:
            try:
                with open(path) as stream:
                    kills = [line.split()[1] for line in stream if line.startswith("oom_kill ")]
            except OSError:
                continue
            total = max(total, *map(int, kills), 0)
        return total


def read_groups(path: str = "/proc/self/cgroup") -> list[list[str]]:
    """Return the control groups of this process: number, controllers, path; none if the kernel reports none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return [line.rstrip("\n").split(":", 2) for line in stream]
    except (OSError, UnicodeDecodeError):
        return []


def _event_files(root: str, own: str) -> list[str]:
    """Return where cgroup v2 and v1 count: `0::/path`, and `N:memory:/path`."""
    found = []
    for number, controllers, path in read_groups(own):
        if number == "0" and not controllers:
            is_ours = os.path.basename(path).startswith(GROUP_PREFIX)  # such a group has no memory of its own
            group = os.path.dirname(path) if is_ours else path
            found.append(os.path.join(root, group.lstrip("/"), "memory.events"))
            found.append(os.path.join(root, "memory.events"))  # where only our own part of the tree is mounted
        elif "memory" in controllers.split(","):
            found.append(os.path.join(root, "memory", path.lstrip("/"), "memory.oom_control"))
            found.append(os.path.join(root, "memory", "memory.oom_control"))
    return found
