"""Which commit a code directory is, and what of it is in none; git is asked, and changes nothing."""

from __future__ import annotations

import bisect
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_SECONDS = 60
_PATHS_AT_ONCE = 500
# No lock is taken, no program that a repository names is run, and a large file counts as binary.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.bigFileThreshold=1m")
_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--ignored=matching", "--", ".")
_DIFF = ("diff", "HEAD", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
# Fields after the kind of an entry: changed, unmerged (git-status(1), Porcelain Format 2).
_FIELDS = {"1": 8, "u": 10}


class Revision(NamedTuple):
    """Name the commit of a bundle; `branch` is empty where none is checked out.

    `uncommitted` are the files that the commit has not, or has otherwise, `diff` how the latter differ from it.
    """

    commit: str
    branch: str
    uncommitted: tuple[str, ...]
    diff: bytes = b""

    def document(self) -> dict[str, object]:
        """Return the revision as manifest and record hold it."""
        return {"commit": self.commit, "branch": self.branch, "uncommitted": self.uncommitted}


class _Status(NamedTuple):
    """Hold what git says of a folder: paths below it that are tracked and changed, and those it does not track."""

    commit: str
    branch: str
    changed: tuple[str, ...]
    untracked: tuple[str, ...]


def read_revision(root: Path, files: Sequence[str]) -> Revision | None:
    """Return the revision of a code directory of which these files are uploaded, sorted; None where git has none."""
    status = _status(root)
    if status is None:
        return None
    uploaded = _Files(files)
    changed = [path for path in status.changed if uploaded.holds(path) or not os.path.lexists(root / path)]
    untracked = [path for path in status.untracked if uploaded.holds(path)]
    diff = b"".join(_diffs(root, changed))
    return Revision(status.commit, status.branch, tuple(sorted({*changed, *untracked})), diff)


class _Files:
    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def holds(self, path: str) -> bool:
        """Tell whether this file is among them, or a file of this folder."""
        at = bisect.bisect_left(self.paths, path)
        return at < len(self.paths) and (self.paths[at] == path or self.paths[at].startswith(path.rstrip("/") + "/"))


def _status(root: Path) -> _Status | None:
    prefix_line = _git(root, "rev-parse", "--show-prefix")
    text = _git(root, *_STATUS) if prefix_line is not None else None
    if prefix_line is None or text is None:
        return None
    prefix = os.fsdecode(prefix_line).removesuffix("\n")
    heads: dict[str, str] = {}
    changed, untracked = [], []
    for entry in os.fsdecode(text).split("\0"):
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            heads[name] = value
        elif kind in ("?", "!"):
            if prefix.startswith(rest.rstrip("/") + "/"):
                return None  # the whole directory is no part of the repository around it
            untracked.append(rest.removeprefix(prefix))
        elif kind in _FIELDS:
            changed.append(rest.split(" ", _FIELDS[kind] - 1)[-1].removeprefix(prefix))
    commit, branch = heads.get("branch.oid", "(initial)"), heads.get("branch.head", "")
    if commit == "(initial)":
        return None
    return _Status(commit, "" if branch == "(detached)" else branch, tuple(changed), tuple(untracked))


def _diffs(root: Path, paths: Sequence[str]) -> Iterator[bytes]:
    for start in range(0, len(paths), _PATHS_AT_ONCE):
        yield _git(root, *_DIFF, "--", *paths[start : start + _PATHS_AT_ONCE]) or b""


def _git(root: Path, *args: str) -> bytes | None:
    """Return what git says, or None: it is not there, this is no repository of the user's, or it takes too long."""
    try:
        done = subprocess.run(
            [*_GIT, *args],
            cwd=root,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
