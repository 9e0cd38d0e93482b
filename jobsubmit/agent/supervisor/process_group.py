"""Find all processes of a local job, including those that have become daemons.

A control group, where one is available, contains every process that was started in it. Otherwise the supervisor records
each process that it sees, with its start time, which distinguishes it from a later process with the same pid.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

from .. import processes
from ..atomic_write import read_file, replace_file
from ..job_directory import JobDirectory
from ..json_form import read_fields
from ..recovery.oom_detector import CGROUPS, GROUP_PREFIX, read_groups
from .machine_identity import describe_watcher

_V1 = ("pids", "name=systemd", "freezer")
_SECONDS = 5.0
_SCOPE_SECONDS = 1.0  # a submission waits for it


def enter(job_dir: str) -> None:
    """Move this process, and so all that it will start, into a control group of the job, if possible."""
    name = _name(job_dir)
    for parent in _own_groups():
        group = os.path.join(parent, name)
        try:
            os.mkdir(group)
            with open(os.path.join(group, "cgroup.procs"), "w") as stream:
                stream.write(str(os.getpid()))
            break
        except OSError:
            _remove(group)
    else:
        group = _systemd_scope(name)
        if not group:
            return
    with open(JobDirectory(job_dir).control_group, "w", encoding="utf-8") as stream:
        stream.write(group)


def _name(job_dir: str) -> str:
    return GROUP_PREFIX + hashlib.sha256(os.path.realpath(job_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _own_groups() -> Iterator[str]:
    """Yield the folders of the groups that this process is in: version 2 first, then those of version 1."""
    entries = read_groups()
    for number, controllers, path in entries:
        if number == "0" and not controllers:
            for root in (CGROUPS, os.path.join(CGROUPS, "unified")):
                if os.path.exists(os.path.join(root, "cgroup.procs")):
                    yield os.path.join(root, path.lstrip("/"))
    for wanted in _V1:
        for _, controllers, path in entries:
            if wanted in controllers.split(","):
                yield os.path.join(CGROUPS, wanted.replace("name=", ""), path.lstrip("/"))


def _systemd_scope(name: str) -> str:
    """Let the user's systemd move this process into a scope of its own; return the scope's folder, or nothing."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.exists(os.path.join(runtime, "systemd", "private")):
        return ""
    scope = name + ".scope"
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    call = ["StartTransientUnit", "ssa(sv)a(sa(sv))", scope, "fail", "1", "PIDs", "au", "1", str(os.getpid()), "0"]
    try:
        subprocess.run(
            ["busctl", "--user", "call", *manager, *call], capture_output=True, timeout=_SCOPE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    deadline = time.monotonic() + _SCOPE_SECONDS
    while time.monotonic() < deadline:
        for group in _own_groups():
            if os.path.basename(group) == scope:
                return group
        time.sleep(0.02)
    return ""


def find_group(job_dir: str) -> str:
    """Return the folder of the job's control group, or nothing; a record that names another folder is ignored."""
    try:
        group = read_file(JobDirectory(job_dir).control_group, 4096).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    is_one = group.startswith(CGROUPS + "/") and ".." not in group.split("/")
    return group if is_one and os.path.basename(group) in (_name(job_dir), _name(job_dir) + ".scope") else ""


def find_members(job_dir: str) -> set[int]:
    """Return the pids of the processes in the job's control group."""
    group = find_group(job_dir)
    try:
        with open(os.path.join(group, "cgroup.procs")) as stream:
            return {int(line) for line in stream if int(line) > 1} if group else set()  # 0 is one of another namespace
    except (OSError, ValueError):
        return set()


def end(job_dir: str, seconds: float = _SECONDS) -> None:
    """Kill all processes that are left in the job's control group, and remove the group."""
    deadline = time.monotonic() + seconds
    while find_members(job_dir) and time.monotonic() < deadline:
        for pid in find_members(job_dir):
            processes.send(pid, signal.SIGKILL)
        time.sleep(0.01)
    if find_group(job_dir):
        _remove(find_group(job_dir))


def _remove(group: str) -> None:
    with suppress(OSError):
        os.rmdir(group)


class Register:
    """Record the descendants of this process, whenever they have changed."""

    def __init__(self, job_dir: str) -> None:
        self.path, self.watcher = JobDirectory(job_dir).processes, describe_watcher(job_dir)
        self.seen: dict[int, int] = {}

    def note(self) -> None:
        """Record the current processes, and earlier ones that still run."""
        starts = {pid: processes.start_time_of(pid) for pid in {*processes.find_descendants(), *self.seen}}
        now = {pid: start for pid, start in starts.items() if start and self.seen.get(pid, start) == start}
        if now == self.seen:
            return
        self.seen = now
        text = json.dumps({"watcher": self.watcher, "seen": sorted(now.items())})
        with suppress(OSError):  # a full disk: the next look may find room
            replace_file(self.path, text, is_durable=False)


def find_registered(job_dir: str) -> set[int]:
    """Return the recorded pids that still belong to the same processes."""
    try:
        found = read_fields(read_file(JobDirectory(job_dir).processes), {"watcher": dict, "seen": [[int]]})
    except (OSError, ValueError):
        return set()
    if found["watcher"] != describe_watcher(job_dir):  # a copy, or of another machine: these are not our processes
        return set()
    pairs = [pair for pair in found["seen"] if len(pair) == 2 and pair[0] > 1]  # noqa: PLR2004
    return {pid for pid, start in pairs if processes.start_time_of(pid) == start}
