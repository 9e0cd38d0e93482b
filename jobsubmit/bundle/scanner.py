"""Code directory → Bundle: a read-only scan that says what would be uploaded, what not, and why."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jobsubmit.agent.fetch import tree_digest
from jobsubmit.bundle.git import read_tracked
from jobsubmit.bundle.ignore import (
    DEFAULT,
    IGNORE_FILES,
    Ignored,
    Rules,
    find_ignoring,
    is_brought_back,
    may_bring_back_below,
    read_rules,
)
from jobsubmit.bundle.model import (
    DANGLING,
    NOT_REGULAR,
    OWN_FILE,
    OWN_FOLDER,
    OWN_OUTPUT,
    Bundle,
    BundleFile,
    Known,
    LeftOut,
    Stamp,
    directory_problem,
    stamp_of,
)
from jobsubmit.common.file_reading import BLOCK, changed_error
from jobsubmit.errors import BundleError

_READ_ATTEMPTS = 3
_LARGE = 1 << 20
_LARGE_AT_ONCE = 4
_NOT_DISKS = ("proc", "sys", "dev")


def scan(root: Path, own: tuple[Path, ...] = (), known: Known | None = None, *, ignore: bool = True) -> Bundle:
    """Scan a code directory, without our `own` files in it; raise BundleError if it cannot be uploaded as a whole.

    A file whose stamp is `known` is not read: its digest is taken from there. Without `ignore` no rule leaves out
    anything: the directory holds what a job wrote, not code.
    """
    if os.path.realpath(root).split("/")[1] in _NOT_DISKS:
        raise BundleError(f"{root} is in /proc, /sys or /dev, which contain no files to upload", "correct code_dir")
    if problem := directory_problem(root):
        raise BundleError(f"the directory to upload {problem}: {root}", "correct its path")
    scanned = time.time_ns()
    scanner = _Scanner(os.fspath(root), own, known or {}, ignore=ignore)
    scanner.run()
    scanner.read_large()
    if not scanner.files and not scanner.directories:
        raise BundleError(
            f"there is no file to upload in {root}",
            "put the code there, or check the ignore rules in .jobignore and .gitignore",
        )
    files = sorted(scanner.files)
    directories = sorted(scanner.directories)
    digest = tree_digest(((file.path, file.mode, file.sha256) for file in files), directories)
    left_out = tuple(sorted(scanner.left_out))
    return Bundle(root, tuple(files), tuple(directories), left_out, digest, scanned, scanner.read)


def is_code(root: Path, path: str) -> bool:
    """Return whether a file that git tracks would belong to the code if it existed."""
    rules: tuple[Rules, ...] = ()
    left_out: Ignored | None = None
    parts = path.split("/")
    for depth in range(len(parts)):
        prefix = "".join(f"{above}/" for above in parts[:depth])
        rules += tuple(read_rules(os.path.join(root, prefix), prefix))
        left_out = _ignored(prefix + parts[depth], rules, left_out, is_dir=depth < len(parts) - 1)
    return left_out is None or not left_out.is_by_jobignore


class _Folder(NamedTuple):
    """A folder that is still to be looked into; `above` are the real paths that lead to it.

    Of one that is `ignored` only what git tracks, or a .jobignore brings back, is taken.
    """

    path: str
    prefix: str
    rules: tuple[Rules, ...]
    real: str
    above: tuple[str, ...]
    ignored: Ignored | None = None


class _Scanner:
    def __init__(self, root: str, own: tuple[Path, ...], known: Known, *, ignore: bool) -> None:
        self.root = root
        self.ignore = ignore
        self.known = known
        self.real_root = os.path.realpath(root)
        self.own = {os.path.realpath(path) for path in own}
        self.outputs = _outputs()
        self.own_names = {os.path.basename(path) for path in self.own}
        self.files: list[BundleFile] = []
        self.large: list[str] = []
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
                self.files += pool.map(lambda path: _read(path, self.root), self.large)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for the end of a large file
            self.read += len(self.large)

    @cached_property
    def tracked(self) -> frozenset[str]:
        """Return the files that git tracks, and the folders that hold any."""
        files = read_tracked(Path(self.root))
        return files | {path[: end.start()] for path in files for end in re.finditer("/", path)}

    def _folders_in(self, folder: _Folder) -> list[_Folder]:
        """Take the files of a folder; return the folders in it that belong to the code."""
        entries = _entries(folder)
        names = {entry.name for entry in entries}
        if folder.prefix and self.ignore and (reason := self._not_code(folder, names)):
            if reason == OWN_FOLDER or folder.prefix.rstrip("/") not in self.tracked:
                self.left_out.append(LeftOut(folder.prefix, reason))
                return []
            folder = folder._replace(ignored=folder.ignored or Ignored(reason))
        if folder.prefix and not entries:
            self.directories.append(folder.prefix.rstrip("/"))
        if self.ignore and not names.isdisjoint(IGNORE_FILES):
            folder = folder._replace(rules=(*folder.rules, *read_rules(folder.path, folder.prefix)))
        taken = (self._look_at(entry, folder) for entry in entries)
        return [inner for inner in taken if inner is not None]

    def _look_at(self, entry: os.DirEntry[str], folder: _Folder) -> _Folder | None:
        """Take a file, or return the folder that is to be looked into."""
        path = folder.prefix + entry.name
        try:
            is_link = entry.is_symlink()
            is_dangling = is_link and not os.path.exists(entry.path)
            is_dir = not is_dangling and entry.is_dir()
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error}", "remove it, make it readable or ignore it") from error
        if self.ignore and self._is_own_file(entry):
            self._leave_out(path, OWN_FILE, is_dir=is_dir)
            return None
        ignored = _ignored(path, folder.rules, folder.ignored, is_dir=is_dir) if self.ignore else None
        if ignored and self._is_out(path, ignored, folder.rules, is_dir=is_dir):
            self._leave_out(path, ignored.reason, ignored.rule, is_dir=is_dir)
            return None
        _require_utf8(path)
        if is_dangling:
            self._leave_out(path, DANGLING, is_dir=False)
            return None
        if is_link:
            self._refuse_link_out(entry, path)
        if is_dir:
            return self._inner(entry, path, folder, is_link=is_link)._replace(ignored=ignored)
        self._take(entry, path)
        return None

    def _is_out(self, path: str, ignored: Ignored, rules: tuple[Rules, ...], *, is_dir: bool) -> bool:
        """Return whether nothing of an ignored path belongs to the code."""
        if is_dir and may_bring_back_below(path, rules, ignored):
            return False
        is_gits_own = ignored.reason == DEFAULT and path.rpartition("/")[2] == ".git"
        return is_gits_own or ignored.is_by_jobignore or path not in self.tracked

    def _leave_out(self, path: str, reason: str, rule: str = "", *, is_dir: bool) -> None:
        self.left_out.append(LeftOut(_shown(path) + "/" * is_dir, reason, rule))

    def _inner(self, entry: os.DirEntry[str], path: str, folder: _Folder, *, is_link: bool) -> _Folder:
        above = (*folder.above, folder.real)
        real = os.path.realpath(entry.path) if is_link else f"{folder.real}/{entry.name}"
        if is_link and real in above:
            raise BundleError(f"the link {path} points back to a folder above it", "remove it or ignore it")
        return _Folder(entry.path, f"{path}/", folder.rules, real, above)

    def _is_own_file(self, entry: os.DirEntry[str]) -> bool:
        return entry.name in self.own_names and os.path.realpath(entry.path) in self.own

    def _not_code(self, folder: _Folder, names: set[str]) -> str:
        if folder.real in self.own:
            return OWN_FOLDER
        return "a virtual environment" if "pyvenv.cfg" in names else ""

    def _refuse_link_out(self, entry: os.DirEntry[str], path: str) -> None:
        target = os.path.realpath(entry.path)
        if os.path.commonpath([target, self.real_root]) != self.real_root:
            raise BundleError(
                f"the link {path} points outside the code directory, to {target}",
                "copy the file in, or add the link to .jobignore",
            )

    def _take(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                self.left_out.append(LeftOut(path, NOT_REGULAR))
                return
            if (status.st_dev, status.st_ino) in self.outputs:
                self.left_out.append(LeftOut(path, OWN_OUTPUT))
                return
        except OSError as error:
            raise _unreadable(path, error) from error
        stamp = stamp_of(status)
        known = self.known.get(path)
        if known is not None and known[1] == stamp:
            path, stamp, sha256 = known  # the same texts, held once
            self.files.append(_file(path, self.root, status, sha256, stamp))
        elif status.st_size > _LARGE:
            self.large.append(path)
        else:
            self.read += 1
            self.files.append(_read(path, self.root))


def _outputs() -> set[tuple[int, int]]:
    """Return the files that this command writes its output to, by device and number: `create --follow > out.txt`."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):
            status = os.fstat(descriptor)
            found.add((status.st_dev, status.st_ino))
    return found


def _file(path: str, root: str, status: os.stat_result, sha256: str, stamp: Stamp) -> BundleFile:
    mode = "755" if status.st_mode & stat.S_IXUSR else "644"
    return BundleFile(path, root, mode, status.st_size, sha256, stamp)


def _unreadable(path: str, error: OSError) -> BundleError:
    return BundleError(f"{path} cannot be read: {error.strerror}", "make it readable or ignore it")


def _read(path: str, root: str) -> BundleFile:
    """Return a file that did not change between the first byte and the last."""
    source = os.path.join(root, path)
    try:
        for _ in range(_READ_ATTEMPTS):
            with open(source, "rb", buffering=0) as stream:
                before = os.fstat(stream.fileno())
                digest = hashlib.sha256()
                while block := stream.read(BLOCK):
                    digest.update(block)
                stamp = stamp_of(before)
                if stamp_of(os.fstat(stream.fileno())) == stamp:
                    return _file(path, root, before, digest.hexdigest(), stamp)
    except OSError as error:
        raise _unreadable(path, error) from error
    raise changed_error(source)


def _ignored(path: str, rules: tuple[Rules, ...], above: Ignored | None, *, is_dir: bool) -> Ignored | None:
    """Return why a path is left out, by a rule of its own or by the one that leaves out a folder `above` it."""
    own = find_ignoring(path, rules, is_dir=is_dir)
    if above is None or (own is not None and own.is_by_jobignore):
        return own
    return None if is_brought_back(path, rules, above, is_dir=is_dir) else above


def _entries(folder: _Folder) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder.path) as entries:
            return list(entries)
    except OSError as error:
        where = folder.prefix or folder.path
        raise BundleError(f"{where} cannot be read: {error.strerror}", "make it readable or ignore it") from error


def _require_utf8(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise BundleError(f"the name {_shown(path)} is not UTF-8", "rename the file or ignore it") from error


def _shown(path: str) -> str:
    """Return a path that can be printed."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
