"""A code directory as it was when it was scanned."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from jobsubmit.bundle.git import Revision
from jobsubmit.common.file_reading import changed_error

NOT_REGULAR = "not a regular file"
DANGLING = "a broken link"
OWN_FOLDER = "jobsubmit writes to this folder: store, state, outputs or checkpoint_dir"
OWN_OUTPUT = "the output of this command"
OWN_FILE = "a file of jobsubmit: the job file or its schema"

Stamp: TypeAlias = str
# Path → itself, stamp and digest.
Known: TypeAlias = Mapping[str, tuple[str, Stamp, str]]


class BundleFile(NamedTuple):
    """One file: path with `/`, the directory it is in, bytes, hex digest, and its stamp."""

    path: str
    root: str
    mode: str
    size: int
    sha256: str
    stamp: Stamp

    @property
    def source(self) -> str:
        """Return the file to read; a link is followed. It is not kept: there may be hundreds of thousands."""
        return os.path.join(self.root, self.path)

    def entry(self) -> dict[str, str | int]:
        """Return the file as the manifest lists it."""
        return {"path": self.path, "mode": self.mode, "size": self.size, "sha256": self.sha256}


class LeftOut(NamedTuple):
    """Something that is not uploaded, and why; `rule` is FILE:LINE where a line of an ignore file leaves it out."""

    path: str
    reason: str
    rule: str = ""


class Bundle(NamedTuple):
    """The files of a code directory as they were at the scan; `digest` is the tree's.

    `directories` are those that hold nothing; `scanned` is when the scan began, in ns since the epoch; `read` counts
    the files that were not known before. `revision` is git's, if it was requested and there is one.
    """

    root: Path
    files: tuple[BundleFile, ...]
    directories: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    digest: str
    scanned: int
    read: int
    revision: Revision | None = None

    @property
    def size(self) -> int:
        """Return the sum of all file sizes, in bytes."""
        return sum(file.size for file in self.files)

    def left_out_by(self, path: str) -> LeftOut | None:
        """Return what leaves out a path on the disk: its own entry, or that of a folder above it."""
        return find_left_out(self.left_out, path)


def find_left_out(left_out: Iterable[LeftOut], path: str) -> LeftOut | None:
    """Return what leaves out a path: its own entry, or that of a folder above it."""
    places = {path, f"{path}/", *(path[: end.start() + 1] for end in re.finditer("/", path))}
    return next((left for left in left_out if left.path in places), None)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return what changes with a file's content, as far as stat can tell (the fields that git's index compares)."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino} {status.st_dev}"


def directory_problem(root: Path) -> str:
    """Return why there is no directory to read, or nothing."""
    if os.path.isdir(root):
        return ""
    return "is not a directory" if os.path.exists(root) else "does not exist"


def require_unchanged(bundle: Bundle) -> None:
    """Raise BundleError if a file changed after the scan: what was read may mix two versions of the code."""
    for file in bundle.files:
        try:
            same = stamp_of(os.stat(file.source)) == file.stamp
        except OSError:
            same = False
        if not same:
            raise changed_error(file.source)
