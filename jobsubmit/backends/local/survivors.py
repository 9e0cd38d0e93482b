"""Processes of a job that nobody watches any more."""

from __future__ import annotations

from pathlib import Path

from jobsubmit.backends.local.gang import files


def survivors(job_dir: Path) -> list[int]:
    """Return the pids of leaders and ranks that a lost job has left running; only Linux can tell."""
    pids = {event["pid"] for event in files.EventReader(str(job_dir)).new() if event["event"].endswith("_start")}
    return sorted(pid for pid in pids if _is_of(pid, job_dir))


def _is_of(pid: int, job_dir: Path) -> bool:
    """Tell whether a process that runs is of this job: a pid may be another process's by now."""
    process = Path("/proc") / str(pid)
    try:
        environment = (process / "environ").read_bytes().split(b"\0")
        state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return f"JOBSUBMIT_LOCAL_JOB_DIR={job_dir}".encode() in environment and state != b"Z"
