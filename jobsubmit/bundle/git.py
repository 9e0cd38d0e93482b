"""The git commit of a code directory, and its uncommitted files. git is only read: it changes nothing."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from jobsubmit.common.scratch import scratch_folder

_SECONDS, _SHORT_SECONDS = 60, 10  # to read files of the work tree; and all else
_PATHS_AT_ONCE = 500
# A diff has the same form whatever the user has configured; a large file counts as binary. No program that a
# repository's own configuration names is started (see _without_filters); filters of the user's, as those of LFS, are.
_GIT = (
    "git",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.bigFileThreshold=1m"),
    *("-c", "diff.orderFile=/dev/null"),
    *("-c", "diff.suppressBlankEmpty=false"),
    *("-c", "diff.interHunkContext=0"),
)
# What is changed in a submodule is asked there: git would start itself in it, with the programs that it names.
_CHANGES = ("diff", "HEAD", "--no-renames", "--no-relative", "--ignore-submodules=dirty", "--no-ext-diff")
_STATUS = ("status", "--porcelain", "-z", "--ignore-submodules=dirty", "--untracked-files=normal", "--no-renames")
_OWN_SCOPES = ("local", "worktree")
_SUBMODULE = "160000"
_READING_FILES = ("diff", "status")
_PLACES = ("--show-toplevel", "--show-prefix", "--absolute-git-dir", "--git-common-dir")
_NONE: Mapping[str, str] = {}
_OLDEST = (2, 31)  # that takes settings from the environment, whatever their names
_AS_TEXT = ("--submodule=short", "--src-prefix=a/", "--dst-prefix=b/", "--no-textconv", "--no-color", "--unified=3")
# Of git's own variables only these say where its settings are; the others may mean another repository, as in a hook.
_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES", "GIT_EXEC_PATH")
_OUR_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # what a partial clone lacks is not fetched, by an older git either
    "LC_ALL": "C",
}
_SECTION = re.compile(rb"^diff --git ", re.MULTILINE)
# Marks of `git ls-files -v`: a changed file would not be noticed.
_UNWATCHED = re.compile(r"[a-zS]")


class UnknownRevisionError(Exception):
    """Why a directory has no revision."""


class Change(NamedTuple):
    """How one file differs from the commit; `path` is relative to the code directory."""

    path: str
    diff: bytes

    @property
    def is_binary(self) -> bool:
        """Return whether git shows no lines of the file."""
        return re.search(rb"^(Binary files |GIT binary patch)", self.diff, re.MULTILINE) is not None

    @property
    def text(self) -> bytes:
        """Return all lines that it shows, old and new, as they are in the file."""
        return b"\n".join(line[1:] for line in self.diff.split(b"\n") if line[:1] in b"+- ")


class Revision(NamedTuple):
    """The commit of a bundle; `branch` is empty where none is checked out.

    `uncommitted` are the files that are not in the commit or differ from it; `changes` are the diffs of the latter.
    """

    commit: str
    branch: str
    uncommitted: tuple[str, ...]
    changes: tuple[Change, ...] = ()

    @property
    def diff(self) -> bytes:
        """Return all changes, as `git apply` reads them."""
        return b"".join(change.diff for change in self.changes)

    def document(self) -> dict[str, object]:
        """Return the revision as manifest and record hold it; names that are not UTF-8 are spelled out."""
        return {
            "commit": self.commit,
            "branch": _spelled(self.branch),
            "uncommitted": [_spelled(path) for path in self.uncommitted],
            "diff_sha256": hashlib.sha256(self.diff).hexdigest() if self.diff else "",
        }


def read_revision(root: Path, sources: Mapping[str, str], is_code: Callable[[str], bool]) -> Revision:
    """Return the revision of a code directory; `sources` maps each path that is uploaded to the file that is read.

    `is_code` returns whether a deleted path would be uploaded. Raises UnknownRevisionError if there is no commit.
    """
    prefix = _own_prefix(root)
    commit = _line(_git(root, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True))
    if not commit:
        raise UnknownRevisionError("its repository has no commit yet")
    branch = _line(_git(root, "symbolic-ref", "--short", "--quiet", "HEAD", may_fail=True))
    entries = _entries(root)
    tracked = set(_tracked(root, entries))
    if not tracked:
        raise UnknownRevisionError(f"git tracks no file in {root}")
    unwatched = {entry.path for entry in entries if _UNWATCHED.match(entry.mark)}
    with _diff_settings(root) as settings:
        names = _paths(_git(root, *_CHANGES, "--name-only", "-z", "--", ".", settings=settings))
        changed = [path.removeprefix(prefix) for path in names]
        suspects = {*changed, *unwatched, *_changed_submodules(root, entries)}
        gone = {path for path in changed if not os.path.lexists(root / path) and is_code(path)}
        uncommitted, uploaded = set(gone), set[str]()
        real_root = os.path.realpath(root)
        for path, source in sources.items():
            is_itself = path in tracked and not Path(source).is_symlink()
            inside = path if is_itself else os.path.relpath(os.path.realpath(source), real_root)
            uploaded.update(_with_above(path), _with_above(inside))
            is_tracked = inside in tracked and not tracked.isdisjoint(_with_above(path))  # a link and what it leads to
            if not is_tracked or not suspects.isdisjoint({*_with_above(path), *_with_above(inside)}):
                uncommitted.add(path)
        shown = [path for path in changed if path in gone or path in uploaded]
        return Revision(commit, branch, tuple(sorted(uncommitted)), tuple(_changes(root, shown, settings)))


def read_tracked(root: Path) -> frozenset[str]:
    """Return the files below a folder that git tracks, those of its submodules included; none without git."""
    try:
        _own_prefix(root)
        return frozenset(_tracked(root, _entries(root)))
    except UnknownRevisionError:
        return frozenset()


class _Entry(NamedTuple):
    """A line of the index: how git watches the file, its mode, and its path below the folder."""

    mark: str
    mode: str
    path: str


def _entries(root: Path) -> list[_Entry]:
    lines = (line.split(" ", 2) for line in _paths(_git(root, "ls-files", "-v", "--stage", "-z", "--", ".")))
    return [_Entry(mark, mode, rest.partition("\t")[2]) for mark, mode, rest in lines]


def _tracked(root: Path, entries: Sequence[_Entry]) -> list[str]:
    if any(entry.mode == _SUBMODULE for entry in entries):
        return _paths(_git(root, "ls-files", "-z", "--recurse-submodules", "--", "."))
    return [entry.path for entry in entries]


def _own_prefix(root: Path) -> str:
    """Return the path of a folder below its work tree, with a slash at its end, or nothing if it is its top.

    Raises UnknownRevisionError unless the folder's repository is about this folder, and is one of its own.

    Its configuration can name any other folder as its work tree, and its files can lead to any other repository: what
    lies there would be taken for a change of the code, and be uploaded with it.
    """
    lines = _line(_git(root, "rev-parse", *_PLACES)).split("\n")
    if len(lines) != len(_PLACES):  # a name holds a line feed
        lines = [_line(_git(root, "rev-parse", place)) for place in _PLACES]
    top, prefix, git, common = lines
    if Path(top, prefix).resolve() != root.resolve():
        raise UnknownRevisionError(f"its repository has another work tree: {top}")
    real = Path(git).resolve()
    is_plain = real == Path(top).resolve() / ".git" and (root / common).resolve() == real
    if not is_plain and not _points_back(Path(git), Path(top).resolve()):
        raise UnknownRevisionError(f"its .git points to {git}, which does not point back")
    return prefix


def _points_back(git: Path, top: Path) -> bool:
    """Return whether a repository that lies elsewhere says that it is of a folder, as of a worktree or a submodule."""
    with suppress(OSError):
        return (git / os.fsdecode((git / "gitdir").read_bytes()).removesuffix("\n")).parent.resolve() == top
    found = _run(top, {}, "config", "--file", str(git / "config"), "core.worktree").stdout
    return bool(found) and (git / _line(found)).resolve() == top


def _changed_submodules(root: Path, entries: Sequence[_Entry]) -> list[str]:
    """Return the submodules below a folder in which something is in no commit, at whatever depth."""
    submodules = [entry.path for entry in entries if entry.mode == _SUBMODULE]
    return [path for path in submodules if (root / path / ".git").exists() and _is_changed(root / path)]


def _is_changed(submodule: Path) -> bool:
    _own_prefix(submodule)
    is_changed = bool(_git(submodule, *_STATUS, settings=_without_filters(submodule)))
    return is_changed or bool(_changed_submodules(submodule, _entries(submodule)))


def _without_filters(root: Path) -> dict[str, str]:
    """Return the environment in which the filters that a repository itself configures are none.

    Git would start them for each file that looks changed. Those of the user's own configuration are left as they are.
    Raises UnknownRevisionError where git is too old for that.
    """
    if _version(root) < _OLDEST:
        if _run(root, {}, "config", "--local", "--includes", "--get-regexp", r"^filter\.").stdout:
            needed = ".".join(map(str, _OLDEST))
            raise UnknownRevisionError(f"its repository configures filters, and git is older than {needed}")
        return {}
    done = _run(root, {}, "config", "--null", "--show-scope", "--get-regexp", r"^filter\.")
    scopes, settings = (fields := _paths(done.stdout))[::2], fields[1::2]
    keys = [setting.partition("\n")[0] for setting in settings]
    own = [key for scope, key in zip(scopes, keys, strict=False) if scope in _OWN_SCOPES]
    names = {key[len("filter.") : key.rindex(".")] for key in own}
    values = {"clean": "", "smudge": "", "process": "", "required": "false"}
    none = [(f"filter.{name}.{key}", value) for name in sorted(names) for key, value in values.items()]
    environment = {"GIT_CONFIG_COUNT": str(len(none))}
    for number, (key, value) in enumerate(none):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


def _version(root: Path) -> tuple[int, ...]:
    found = re.search(rb"(\d+)\.(\d+)", _run(root, {}, "version").stdout)
    return tuple(map(int, found.groups())) if found else (0, 0)


@contextmanager
def _diff_settings(root: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which `git diff` starts nothing, and reads a copy of the index that it cannot write.

    It writes an index in which the stamp of a file is old, and hooks follow upon that; a lock prevents it.
    """
    index = root / _line(_git(root, "rev-parse", "--git-path", "index"))
    with scratch_folder() as folder:
        copy = folder / "index"
        with suppress(FileNotFoundError):
            shutil.copy2(index, copy)  # with its time: what was changed in the same second is compared by content
        copy.with_suffix(".lock").touch()
        yield {**_without_filters(root), "GIT_INDEX_FILE": str(copy)}


def _with_above(path: str) -> list[str]:
    """Return a path and the folders above it: one of them may be a link, or a submodule."""
    return [path, *(path[: end.start()] for end in re.finditer("/", path))]


def _changes(root: Path, changed: Sequence[str], settings: Mapping[str, str]) -> Iterator[Change]:
    for start in range(0, len(changed), _PATHS_AT_ONCE):
        paths = changed[start : start + _PATHS_AT_ONCE]
        text = _git(root, *_CHANGES, *_AS_TEXT, "--", *paths, may_fail=True, settings=settings)
        begins = [match.start() for match in _SECTION.finditer(text)]
        if len(begins) == len(paths):  # unmerged files have none
            sections = [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]
            yield from map(Change, paths, sections)


def _git(root: Path, *args: str, may_fail: bool = False, settings: Mapping[str, str] = _NONE) -> bytes:
    """Return what git says. `settings` is its further environment: what reads files of the work tree needs it."""
    done = _run(root, settings, *args)
    if done.returncode != 0 and not may_fail:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise UnknownRevisionError(said[0].removeprefix("fatal: ") if said else f"git {args[0]} failed")
    return done.stdout


def _run(root: Path, settings: Mapping[str, str], *args: str) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    command = [*_GIT, *args]
    try:
        git = subprocess.Popen(
            command,
            cwd=root,
            env={**environment, **_OUR_ENVIRONMENT, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UnknownRevisionError("git is not on PATH") from None
    except OSError as error:
        raise UnknownRevisionError(f"git cannot be started: {error}") from None
    with git:
        try:
            out, err = git.communicate(timeout=_SECONDS if args[0] in _READING_FILES else _SHORT_SECONDS)
        except subprocess.TimeoutExpired:
            raise UnknownRevisionError(f"git {args[0]} timed out") from None
        finally:
            if git.poll() is None:
                os.killpg(git.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, git.returncode, out, err)


def _line(output: bytes) -> str:
    return os.fsdecode(output).removesuffix("\n")


def _paths(output: bytes) -> list[str]:
    return os.fsdecode(output).split("\0")[:-1]


def _spelled(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
