"""Job ids as names of Kubernetes objects: lower case, no `_`, and short enough for what is derived from them."""

from __future__ import annotations

import base64
import hashlib
import re

TASK = "worker"
_LONGEST = 63 - len(f"-{TASK}-99999")  # a pod's name is its host name, a label of the domain name system
LONGEST_HOST_LIST = 115_000  # characters, in one variable of every pod; the kernel's limit is 131,071
_DIGEST = 6


def object_name(job_id: str, nodes: int) -> str:
    """Return the name of a job's Kubernetes objects: the id if it is a valid name, else one derived from it."""
    name = re.sub(r"[^a-z0-9-]+", "-", job_id.lower()).strip("-")
    name = name if name[:1].isalpha() else f"j-{name}"
    if name == job_id and len(name) <= _LONGEST and host_list_length(name, nodes) <= LONGEST_HOST_LIST:
        return name
    digest = base64.b32encode(hashlib.sha256(job_id.encode()).digest()).decode().lower()[:_DIGEST]
    kept = name[: _LONGEST - _DIGEST - 1].rstrip("-")
    if host_list_length(f"{kept}-{digest}", nodes) > LONGEST_HOST_LIST:
        return f"j{digest}"
    return f"{kept}-{digest}"


def host_list_length(name: str, nodes: int) -> int:
    """Return the length of the comma-separated list of a job's host names: `NAME-worker-0.NAME,…`."""
    return nodes * (2 * len(name) + len(f"-{TASK}-.,") + len(str(nodes)))
