"""Check that the folders that a job reads exist, and that those it writes can be created."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jobsubmit.common.finding import Finding
from jobsubmit.common.store_address import REMOTE_SCHEMES
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.mounts import Mount

_NEAR = 2  # `data` or `../data` of a job file beside code_dir, in a folder that is not all that a machine has


def check_data(plan: LaunchPlan) -> Iterator[Finding]:
    """Yield what is wrong with the paths of inputs, outputs and checkpoints, if this machine can see them."""
    written: set[str] = set()
    for mount in plan.mounts:
        field = mount.field
        if mount.kind != "input" and mount.uri in written:
            yield Finding(
                "error",
                "data",
                field,
                f"{mount.uri} is also the target of another output or of checkpoint_dir",
                "give each a different path",
            )
        if mount.kind != "input":
            written.add(mount.uri)
        if mount.uri.startswith(REMOTE_SCHEMES):
            continue
        if not plan.backend.is_this_machine:
            yield from _seems_missing(mount, plan)
            continue
        if mount.kind == "input" and not Path(mount.uri).is_dir():
            yield Finding(
                "error",
                "data",
                field,
                f"{mount.uri} does not exist or is not a folder",
                "correct the path (relative to the job file)",
            )
        if mount.kind != "input" and Path(mount.uri).exists() and not Path(mount.uri).is_dir():
            yield Finding(
                "error",
                "data",
                field,
                f"{mount.uri} is a file, not a folder",
                "correct the path (relative to the job file)",
            )


def _seems_missing(mount: Mount, plan: LaunchPlan) -> Iterator[Finding]:
    """Yield a warning for an input near the code that is not there; another one only the nodes may see."""
    path, *folders = Path(mount.uri), *Path(plan.code_dir).resolve().parents[:_NEAR]
    is_near = any(len(folder.parts) >= _NEAR and path.is_relative_to(folder) for folder in folders)
    if mount.kind == "input" and is_near and not path.exists() and folders[0].is_dir():
        text = f"{mount.uri} does not exist on this machine"
        yield Finding("warning", "data", mount.field, text, "correct the path (relative to the job file)")
