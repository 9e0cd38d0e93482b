"""The folders that a job reads and writes are there, or can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jobsubmit.common.finding import Finding
from jobsubmit.common.store_address import REMOTE_SCHEMES
from jobsubmit.plan.launch_plan import LaunchPlan


def check_data(plan: LaunchPlan) -> Iterator[Finding]:
    """Yield what is wrong with the places of inputs, outputs and checkpoints, as far as this machine sees them."""
    written: set[str] = set()
    for mount in plan.mounts:
        field = mount.field
        if mount.kind != "input" and mount.uri in written:
            yield Finding(
                "error", "data", field, f"{mount.uri} is written to by two of them", "give each a place of its own"
            )
        if mount.kind != "input":
            written.add(mount.uri)
        if mount.uri.startswith(REMOTE_SCHEMES) or not plan.backend.is_this_machine:
            continue  # only the nodes can see it
        if mount.kind == "input" and not Path(mount.uri).is_dir():
            yield Finding("error", "data", field, f"{mount.uri} is not a folder", "a path is relative to the job file")
        if mount.kind != "input" and Path(mount.uri).exists() and not Path(mount.uri).is_dir():
            yield Finding(
                "error", "data", field, f"{mount.uri} is a file, not a folder", "a path is relative to the job file"
            )
