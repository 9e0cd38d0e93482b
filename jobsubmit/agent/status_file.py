"""The status file of a job or a node, and the request to cancel it: each is read and replaced as a whole."""

from __future__ import annotations

import json

from .atomic_write import read_file, replace_file
from .job_directory import JobDirectory
from .protocol import NodeStatus, read_status_text

STOPPED_BY_PLATFORM = "STOPPED_BY_ENGINE"  # the reason of a node that its platform asked to end
NO_STATUS: NodeStatus = {
    "state": "FAILED",
    "reason": "AGENT_FAILED",
    "message": "the node left no readable status",
    "failure": None,
}


def write_status(job_dir: str, status: NodeStatus) -> None:
    """Replace the status as a whole."""
    replace_file(JobDirectory(job_dir).status, json.dumps(status, ensure_ascii=False, indent=1))


def load_status(job_dir: str) -> NodeStatus | None:
    """Return the status, or None if it does not exist yet.

    Raises ValueError if it is damaged, OSError if it cannot be read now.
    """
    try:
        return read_status_text(read_file(JobDirectory(job_dir).status))
    except FileNotFoundError:
        return None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise ValueError("status.json cannot be read: %s" % error.strerror) from None
    except ValueError as error:
        raise ValueError("status.json is damaged: %s" % error) from None


def read_status(job_dir: str) -> NodeStatus | None:
    """Return the status, or None if it does not exist or cannot be read."""
    try:
        return load_status(job_dir)
    except (OSError, ValueError):
        return None


def ask_cancel(job_dir: str, grace: float | None) -> None:
    """Ask the supervisor of a job to end it, with a grace time in seconds."""
    replace_file(JobDirectory(job_dir).cancel, "" if grace is None else repr(grace))


def cancel_grace(job_dir: str, usual: float) -> float | None:
    """Return the grace time of a cancellation, or None if the job was not cancelled."""
    return read_grace(JobDirectory(job_dir).cancel, usual)


def read_grace(path: str, usual: float) -> float | None:
    """Return the grace time in a file, `usual` if it names none, and None if there is no file."""
    try:
        grace = float(read_file(path).decode("ascii", "replace") or usual)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return usual
    return grace if 0 <= grace < float("inf") else usual
