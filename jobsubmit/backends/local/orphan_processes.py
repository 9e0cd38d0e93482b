"""Processes of a job: those that supervise it, and those that are left without a supervisor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jobsubmit.agent import processes
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.node_contract import AGENT_DIR
from jobsubmit.agent.supervisor import process_group


def find_survivors(files: JobDirectory) -> list[int]:
    """Return the pids of the processes of a job; always empty outside Linux.

    They have the job in their environment, are in its control group, or were recorded by its supervisor; all their
    descendants belong to the job, too.
    """
    mark = f"{AGENT_DIR}={files.path}".encode()
    marked = {pid for pid, data in _read_each("environ") if mark in data.split(b"\0")}
    known = marked | process_group.find_members(files.path) | process_group.find_registered(files.path)
    below = processes.find_descendants(known) if known else []
    return sorted(pid for pid in known.union(below) if pid != os.getpid() and processes.start_time_of(pid) is not None)


def find_watchers(files: JobDirectory) -> list[int]:
    """Return the pids of the guardian and the supervisor of a job, which have its directory as their last argument."""
    end = b"\0" + os.fsencode(files.path) + b"\0"
    return [pid for pid, data in _read_each("cmdline") if data.endswith(end) and b"supervisor.guardian" in data]


def _read_each(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the pid of each process that we may read, with the content of one of its files."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(process.name), (process / name).read_bytes()
