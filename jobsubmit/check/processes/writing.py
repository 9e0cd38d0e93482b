"""The files that processes write, and the data that they download."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from jobsubmit.check.checkpoints.saving import LOCAL_FOLDERS
from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import BARRIERS
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.processes.pairs import both
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.common.finding import Finding

_SHARED = re.compile(r"shared|nfs|lustre|gpfs|efs|fsx|sfs")  # a folder that all nodes have, by its name


def check_writing(code: Code) -> Iterator[Finding]:
    """Yield a warning where another process saves the same file as the first."""
    for one, other in ((code.followed[0], each) for each in code.followed[1:]):
        is_beside = one.process.node == other.process.node
        for event, second in both(one, other, "save") if _waits(one) == _waits(other) else ():
            path = event.argument("f", 1, UNKNOWN)
            is_same = path is not UNKNOWN and str(path) == str(second.argument("f", 1, UNKNOWN))
            is_shared = is_beside or (str(path).startswith("/") and _SHARED.search(str(path)))
            if event.name == second.name == "torch.save" and is_same and is_shared and path is not None:
                yield Finding(
                    "warning",
                    "saved-by-all",
                    event.module.where(event.call),
                    "each process writes the same file: it may be damaged"
                    if is_beside
                    else f"the first process of each of the {code.facts.nodes} nodes writes the same file, if they "
                    "share the folder: it may be damaged",
                    "save it on rank 0 only: if dist.get_rank() == 0: torch.save(…)",
                )
                return


def _waits(one: Followed) -> set[tuple[ast.Call, ...]]:
    """Return the barriers that a process comes to: where these differ, one process waits until another has written."""
    return {path for path, event in one.events.items() if event.last in BARRIERS}


def check_downloads_beyond(code: Code) -> Iterator[Finding]:
    """Yield a warning where only the first process downloads data, to the disk of its node."""
    for one, other in ((code.followed[0], each) for each in code.followed[1:] if each.process.node != 0):
        for event in one.events.values():
            second = other.events.get(event.path)
            root = event.argument("root", 0, UNKNOWN)
            is_on_node = isinstance(root, (str, PurePosixPath)) and str(root).startswith(LOCAL_FOLDERS)
            is_alone = second is None or second.argument("download") is False
            if event.argument("download") is True and is_on_node and is_alone and event.is_sure:
                yield Finding(
                    "warning",
                    "staged-by-one",
                    event.module.where(event.call),
                    f"only rank 0 puts data into {root}, on the disk of its node: no other node has it",
                    "let the first process of each node do it: if local_rank == 0",
                )
                return
