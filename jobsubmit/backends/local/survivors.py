"""Processes of a job that nobody watches any more."""

from __future__ import annotations

from pathlib import Path


def survivors(job_dir: Path) -> list[int]:
    """Return the pids of processes that carry a job in their environment; only Linux can tell."""
    mark = f"JOBSUBMIT_GANG_DIR={job_dir}".encode()
    return sorted(int(process.name) for process in Path("/proc").glob("[0-9]*") if _carries(process, mark))


def _carries(process: Path, mark: bytes) -> bool:
    try:
        environment = (process / "environ").read_bytes().split(b"\0")
        state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return mark in environment and state != b"Z"
