"""The files that processes write, and the data that they download."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Set
from pathlib import PurePosixPath

from jobsubmit.check.checkpoints.races import is_handled
from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import BARRIERS
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.process import READS, WRITES, WRITING_METHODS
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.processes.pairs import both
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.common.finding import Finding

_MOVES = frozenset(["chdir", "symlink", "symlink_to", "link"])
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
            is_on_node = code.facts.is_on_node(root)
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


def check_reading_beyond(code: Code) -> Iterator[Finding]:
    """Yield a warning where a file that only the first node writes is read on another one, from its own disk."""
    if not _MOVES.isdisjoint(code.names_in_use):
        return  # relative paths may begin elsewhere
    for one, other in ((code.followed[0], each) for each in code.followed[1:] if each.process.node != 0):
        beside = [each for each in code.followed if each.process.node == other.process.node]
        there = {path for each in beside for path, _ in _files(each, WRITES)} | set(code.program.paths)
        for path, read in _files(other, READS):
            is_first = path not in there
            there.add(path)
            if not is_first or not read.is_sure or not _is_on_node(code, path):
                continue
            if any(is_handled(call, code.module_of(call, read)) for call in read.path):
                continue
            written = next((event for name, event in _until(one, read) if name == path), None)
            if written is not None:
                place = written.module.where(written.call)
                yield Finding(
                    "warning",
                    "staged-by-one",
                    read.module.where(read.call),
                    f"reads {path}, which only rank 0 writes ({place}): it is on the disk of the first node, and no "
                    "other node has it",
                    "write it in the first process of each node (if local_rank == 0), or send what is in it from rank "
                    "0 to the others: dist.broadcast_object_list([…], src=0)",
                )
                return


def _until(one: Followed, read: Event) -> Iterator[tuple[str, Event]]:
    """Yield the files that a process writes before it comes to a call that reads, if it does."""
    events = list(one.events)
    end = events.index(read.path) if read.path in one.events else len(events)
    before = set(events[:end])
    return ((path, event) for path, event in _files(one, WRITES) if event.path in before)


def _files(one: Followed, names: Set[str]) -> Iterator[tuple[str, Event]]:
    """Yield the files that a process reads, or those that it writes."""
    for event in one.events.values():
        is_own = event.name in names or (names is WRITES and event.last in WRITING_METHODS)
        path = _file_of(event) if is_own else None
        if path is not None and _is_writing(event) == (names is WRITES):
            yield posixpath.normpath(str(path)), event


def _file_of(event: Event) -> str | PurePosixPath | None:
    is_second = event.last in ("save", "copy", "copy2", "copyfile", "move", "rename", "replace", "save_file")
    position = 1 if is_second and event.name != "numpy.save" else 0
    path = event.args[position] if position < len(event.args) else event.keywords.get("f", UNKNOWN)
    return path if isinstance(path, (str, PurePosixPath)) and str(path) else None


def _is_writing(event: Event) -> bool | None:
    """Return whether a call writes its file; None if its mode is not known."""
    if event.last not in ("open", "memmap"):
        return event.name in WRITES or event.last in WRITING_METHODS
    given = event.argument("mode", 2 if event.last == "memmap" else 1, "r")
    return bool(set(given) & set("wxa")) if isinstance(given, str) else None


def _is_on_node(code: Code, path: str) -> bool:
    """Return whether a path is on the disk of a node: in the folder of its code, or in one of the system."""
    return code.facts.is_on_node(path) or path[0] not in "/~$"
