"""Whether hosts share the folder of a job's checkpoints: host 0 leaves a mark there, and the others look for it."""

from __future__ import annotations

import os
from contextlib import suppress

from ..protocol import AgentRequest

_NAME = ".jobsubmit-%s"


def leave_mark(request: AgentRequest) -> str:
    """Return a new file in the folder of the checkpoints; empty if the job has none, or it cannot be written."""
    mounts = [m for m in request["mounts"] if m["kind"] == "checkpoint" and "path" not in m and "://" not in m["uri"]]
    if not mounts or request["nodes"] == 1:
        return ""
    folder = mounts[0]["uri"]
    path = os.path.join(folder, _NAME % request["job_id"])
    try:
        os.makedirs(folder, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return ""  # the nodes say so
    return path


def remove_mark(path: str) -> None:
    """Remove a mark, if there is one."""
    if path:
        with suppress(OSError):
            os.unlink(path)


def describe_unshared(path: str, host: str, first: str) -> str:
    """Return what it means that a host does not see the mark of host 0."""
    return (
        "%s and %s do not share the folder %s: after a restart, the ranks of each host find only the checkpoints that "
        "it has saved itself" % (first, host, os.path.dirname(path))
    )
