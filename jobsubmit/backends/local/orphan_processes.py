"""Processes of a job: those that watch it, and those that nobody watches any more."""

from __future__ import annotations

import os
from pathlib import Path

from jobsubmit.agent import processes
from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.node_contract import AGENT_DIR
from jobsubmit.agent.supervisor import process_group


def find_survivors(files: JobDirectory) -> list[int]:
    """Return the pids of processes of a job; only Linux can tell.

    They carry the job in their environment, are in its control group, or were seen by its supervisor; all that these
    have started belongs to it, too.
    """
    mark = f"{AGENT_DIR}={files.path}".encode()
    marked = {int(process.name) for process in Path("/proc").glob("[0-9]*") if _carries(process, mark)}
    known = marked | process_group.find_members(files.path) | process_group.find_registered(files.path)
    below = processes.find_descendants(known) if known else []
    return sorted(pid for pid in known.union(below) if pid != os.getpid() and processes.start_time_of(pid) is not None)


def find_watchers(files: JobDirectory) -> list[int]:
    """Return the pids of the guardian and the supervisor of a job, which have its directory as their last argument."""
    end = os.fsencode(files.path) + b"\0"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if words.endswith(b"\0" + end) and b"supervisor.guardian" in words:
            found.append(int(process.name))
    return found


def _carries(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
