"""Whether a job still has a supervisor: here, or on another machine that sees the same files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.protocol import NodeStatus
from jobsubmit.agent.supervisor.machine_identity import describe_watcher
from jobsubmit.common.durations import time_text
from jobsubmit.common.file_lock import is_locked

_STALE_SECONDS = 60.0  # a supervisor sets the time stamp of its lock once a second


_FORGOTTEN_SECONDS = 3600.0  # of another machine: it is not waited for any more


class Elsewhere(NamedTuple):
    """The machine or directory in which a job runs, if not here; `is_silent` after an hour without a heartbeat."""

    host: str
    text: str
    is_silent: bool = False


def find_watcher(files: JobDirectory, status: NodeStatus | None) -> tuple[bool, Elsewhere | None]:
    """Return whether a job that has not ended has a supervisor, and where if that is not here.

    A lock proves it, but only on the machine and in the directory where it was taken. Whether another machine still
    runs the job cannot be determined from here.
    """
    lock = Path(files.lock)
    is_held = is_locked(lock)
    if is_held:
        return True, None
    own, other = describe_watcher(files.path), status.get("watcher") if status else None
    beat = _beat(lock)
    silent_seconds = abs(time.time() - beat)
    if other and other["boot"] != own["boot"] and (other["host"] != own["host"] or silent_seconds < _STALE_SECONDS):
        if silent_seconds >= _FORGOTTEN_SECONDS:
            text = f"it ran on {other['host']}, whose last heartbeat was at {_when(beat)}"
            return True, Elsewhere(other["host"], text, is_silent=True)
        return True, Elsewhere(other["host"], f"it runs on {other['host']}, as of {_when(beat)}")
    if other and other["boot"] == own["boot"] and other["dir"] != own["dir"]:
        if is_locked(Path(other["dir"]) / lock.name):
            return True, Elsewhere(other["host"], f"it runs in {other['dir']}, and this is a copy as of {_when(beat)}")
    return is_held is None and silent_seconds < _STALE_SECONDS, None


def _beat(lock: Path) -> float:
    """Return when the lock was touched last, in seconds since the epoch; 0 if unknown."""
    try:
        return lock.stat().st_mtime
    except OSError:
        return 0.0


def _when(beat: float) -> str:
    return time_text(beat) if beat else "an unknown time"
