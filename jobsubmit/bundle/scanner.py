"""Code directory → Bundle: a read-only scan that says what would be uploaded, what not, and why."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import NamedTuple

from jobsubmit.agent.fetch import tree_digest
from jobsubmit.bundle.ignore import IGNORE_FILES, Rules, last_opinion, match_defaults, read_rules
from jobsubmit.bundle.model import NOT_REGULAR, Bundle, BundleFile, Known, LeftOut, Stamp, directory_problem, stamp_of
from jobsubmit.common.file_reading import BLOCK, changed_error
from jobsubmit.errors import BundleError

_READ_ATTEMPTS = 3
_LARGE = 1 << 20
_LARGE_AT_ONCE = 4
_NOT_DISKS = ("proc", "sys", "dev")
_OWN = "jobsubmit's own: a store, state or job file"


def scan(root: Path, own: tuple[Path, ...] = (), known: Known | None = None, *, ignore: bool = True) -> Bundle:
    """Read a code directory, without what is our `own` in it; raise BundleError where it cannot go whole.

    A file whose stamp is `known` is not read: its digest is taken from there. Without `ignore` no rule leaves out
    anything: what is in the directory is no code, but what a job made.
    """
    if os.path.realpath(root).split("/")[1] in _NOT_DISKS:
        raise BundleError(f"{root} holds no files: they are made when they are read", "correct code_dir")
    if problem := directory_problem(root):
        raise BundleError(f"the directory to upload {problem}: {root}", "correct its path")
    scanned = time.time_ns()
    scanner = _Scanner(os.fspath(root), own, known or {}, ignore=ignore)
    scanner.run()
    scanner.read_large()
    if not scanner.files and not scanner.directories:
        raise BundleError(f"there is no file to upload in {root}", "check the ignore rules in .jobignore or .gitignore")
    files = sorted(scanner.files)
    directories = sorted(scanner.directories)
    digest = tree_digest(((file.path, file.mode, file.sha256) for file in files), directories)
    left_out = tuple(sorted(scanner.left_out))
    return Bundle(root, tuple(files), tuple(directories), left_out, digest, scanned, scanner.read)


def is_code(root: Path, path: str) -> bool:
    """Return whether a file would belong to the code if it were there."""
    name = _ignore_name(os.fspath(root))
    rules: tuple[Rules, ...] = ()
    parts = path.split("/")
    for depth, part in enumerate(parts):
        prefix = "".join(f"{above}/" for above in parts[:depth])
        rules += read_rules(os.path.join(root, prefix), prefix, name)
        if _ignored(prefix + part, part, rules, is_dir=depth < len(parts) - 1):
            return False
    return True


def _ignore_name(root: str) -> str:
    return next((name for name in IGNORE_FILES if os.path.isfile(os.path.join(root, name))), IGNORE_FILES[-1])


class _Folder(NamedTuple):
    """A folder that is still to be looked into; `above` are the real paths that lead to it."""

    path: str
    prefix: str
    rules: tuple[Rules, ...]
    real: str
    above: tuple[str, ...]


class _Scanner:
    def __init__(self, root: str, own: tuple[Path, ...], known: Known, *, ignore: bool) -> None:
        self.root = root
        self.ignore = ignore
        self.known = known
        self.real_root = os.path.realpath(root)
        self.own = {os.path.realpath(path) for path in own}
        self.own_names = {os.path.basename(path) for path in self.own}
        self.ignore_name = _ignore_name(root)
        self.files: list[BundleFile] = []
        self.large: list[tuple[str, str]] = []
        self.directories: list[str] = []
        self.left_out: list[LeftOut] = []
        self.read = 0

    def run(self) -> None:
        waiting = [_Folder(self.root, "", (), self.real_root, ())]
        while waiting:
            waiting += self._folders_in(waiting.pop())

    def read_large(self) -> None:
        """Read the large files, several at once."""
        if self.large:
            from concurrent.futures import ThreadPoolExecutor

            pool = ThreadPoolExecutor(_LARGE_AT_ONCE)
            try:
                self.files += pool.map(lambda large: _read(*large), self.large)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for the end of a large file
            self.read += len(self.large)

    def _folders_in(self, folder: _Folder) -> list[_Folder]:
        """Take the files of a folder; return the folders in it that belong to the code."""
        entries = _entries(folder)
        names = {entry.name for entry in entries}
        if folder.prefix and self.ignore and (reason := self._not_code(folder, names)):
            self.left_out.append(LeftOut(folder.prefix, reason))
            return []
        if folder.prefix and not entries:
            self.directories.append(folder.prefix.rstrip("/"))
        rules = folder.rules
        if self.ignore and self.ignore_name in names:
            rules += read_rules(folder.path, folder.prefix, self.ignore_name)
        inner = []
        for entry in entries:
            path = folder.prefix + entry.name
            is_link, is_dir = _kind(entry, path)
            if self.ignore and (reason := _ignored(path, entry.name, rules, is_dir=is_dir) or self._own_file(entry)):
                self.left_out.append(LeftOut(_shown(path) + "/" * is_dir, reason))
                continue
            _require_utf8(path)
            if is_link:
                self._refuse_link_out(entry, path)
            if is_dir:
                inner.append(self._inner(entry, path, rules, folder, is_link=is_link))
            else:
                self._take(entry, path)
        return inner

    def _inner(
        self, entry: os.DirEntry[str], path: str, rules: tuple[Rules, ...], folder: _Folder, *, is_link: bool
    ) -> _Folder:
        above = (*folder.above, folder.real)
        real = os.path.realpath(entry.path) if is_link else f"{folder.real}/{entry.name}"
        if is_link and real in above:
            raise BundleError(f"the link {path} leads back to a folder above it", "remove it or ignore it")
        return _Folder(entry.path, f"{path}/", rules, real, above)

    def _own_file(self, entry: os.DirEntry[str]) -> str:
        is_own = entry.name in self.own_names and os.path.realpath(entry.path) in self.own
        return _OWN if is_own else ""

    def _not_code(self, folder: _Folder, names: set[str]) -> str:
        if folder.real in self.own:
            return _OWN
        return "a virtual environment" if "pyvenv.cfg" in names else ""

    def _refuse_link_out(self, entry: os.DirEntry[str], path: str) -> None:
        target = os.path.realpath(entry.path)
        if os.path.commonpath([target, self.real_root]) != self.real_root:
            raise BundleError(
                f"the link {path} leads out of the code directory, to {target}",
                "copy the file in, or add the link to .jobignore",
            )
        if not os.path.exists(target):
            raise BundleError(f"the link {path} leads to nothing", "remove it, or add it to .jobignore")

    def _take(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                self.left_out.append(LeftOut(path, NOT_REGULAR))
                return
        except OSError as error:
            raise _unreadable(path, error) from error
        stamp = stamp_of(status)
        known = self.known.get(path)
        if known is not None and known[1] == stamp:
            path, stamp, sha256 = known  # the same texts, held once
            self.files.append(_file(path, entry.path, status, sha256, stamp))
        elif status.st_size > _LARGE:
            self.large.append((path, entry.path))
        else:
            self.read += 1
            self.files.append(_read(path, entry.path))


def _file(path: str, source: str, status: os.stat_result, sha256: str, stamp: Stamp) -> BundleFile:
    mode = "755" if status.st_mode & stat.S_IXUSR else "644"
    return BundleFile(path, source, mode, status.st_size, sha256, stamp)


def _unreadable(path: str, error: OSError) -> BundleError:
    return BundleError(f"{path} cannot be read: {error.strerror}", "make it readable or ignore it")


def _read(path: str, source: str) -> BundleFile:
    """Return a file that did not change between the first byte and the last."""
    try:
        for _ in range(_READ_ATTEMPTS):
            with open(source, "rb", buffering=0) as stream:
                before = os.fstat(stream.fileno())
                digest = hashlib.sha256()
                while block := stream.read(BLOCK):
                    digest.update(block)
                stamp = stamp_of(before)
                if stamp_of(os.fstat(stream.fileno())) == stamp:
                    return _file(path, source, before, digest.hexdigest(), stamp)
    except OSError as error:
        raise _unreadable(path, error) from error
    raise changed_error(source)


def _ignored(path: str, name: str, rules: tuple[Rules, ...], *, is_dir: bool) -> str:
    """Return the name of the rules that leave a path out, or nothing; the deepest file that has an opinion wins."""
    for rule in reversed(rules):
        opinion = last_opinion(rule.patterns, path[len(rule.base) :], is_dir=is_dir)
        if opinion is not None:
            return f"ignored by {rule.name}" if opinion else ""
    return "ignored by the default rules" if match_defaults(name, is_dir=is_dir) else ""


def _entries(folder: _Folder) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder.path) as entries:
            return list(entries)
    except OSError as error:
        where = folder.prefix or folder.path
        raise BundleError(f"{where} cannot be read: {error.strerror}", "make it readable or ignore it") from error


def _kind(entry: os.DirEntry[str], path: str) -> tuple[bool, bool]:
    """Return (is a link, is or leads to a folder); a link that leads in circles is refused."""
    try:
        return entry.is_symlink(), entry.is_dir()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error}", "remove it, make it readable or ignore it") from error


def _require_utf8(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise BundleError(f"the name {_shown(path)} is not UTF-8", "rename the file or ignore it") from error


def _shown(path: str) -> str:
    """Return a path that can be printed."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
