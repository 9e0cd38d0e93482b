"""What hosts keep beyond the end of jobs: the agent, code and start scripts."""

from __future__ import annotations

from collections.abc import Sequence

from jobsubmit.agent.job_directory import USUAL_ROOT
from jobsubmit.backends.ssh.connection import ask, ask_all
from jobsubmit.errors import BackendError


def empty_caches(hosts: Sequence[str], root: str | None = None) -> dict[str, int | BackendError]:
    """Empty the cache below a folder of each host; return how many bytes that freed, or why it could not be done."""
    return ask_all(hosts, lambda host: int(ask(host, root or USUAL_ROOT, "empty", {}).document["freed"]))
