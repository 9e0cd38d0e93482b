"""Code directory → Bundle: a read-only scan that says what would be uploaded, what not, and why."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pathspec import GitIgnoreSpec

from jobsubmit.errors import BundleError
from jobsubmit.node.fetch import tree_digest

# What nobody wants on a node; a `!pattern` in the ignore file brings any of it back.
DEFAULT_IGNORES = [
    ".git",
    ".hg",
    ".svn",
    "__pycache__/",
    "*.py[co]",
    ".venv/",
    "venv/",
    "node_modules/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    ".ipynb_checkpoints/",
    ".tox/",
    ".nox/",
    "*.egg-info/",
    ".DS_Store",
]


@dataclass(frozen=True)
class BundleFile:
    """Describe one file: its path with `/`, the file to read (a link is followed), bytes, hex digest."""

    path: str
    source: Path
    mode: Literal["644", "755"]
    size: int
    sha256: str

    def entry(self) -> dict[str, str | int]:
        """Return the file as the manifest lists it."""
        return {"path": self.path, "mode": self.mode, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class LeftOut:
    """Name something that is not uploaded, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Bundle:
    """Hold the files of a code directory as they were at the scan; `digest` is the tree's."""

    root: Path
    files: tuple[BundleFile, ...]
    left_out: tuple[LeftOut, ...]
    digest: str

    @property
    def size(self) -> int:
        """Return the sum of all file sizes, in bytes."""
        return sum(file.size for file in self.files)


def scan(root: Path, own: tuple[Path, ...] = ()) -> Bundle:
    """Read a code directory, without the folders that are our `own`; raise BundleError where it cannot go whole."""
    if problem := directory_problem(root):
        raise BundleError(f"the directory to upload {problem}: {root}", "correct its path")
    scanner = _Scanner(root, own)
    files = sorted(scanner.files(), key=lambda file: file.path)
    if not files:
        raise BundleError(f"there is no file to upload in {root}", "check the ignore rules in .jobignore or .gitignore")
    digest = tree_digest([file.entry() for file in files])
    return Bundle(root, tuple(files), tuple(sorted(scanner.left_out, key=lambda left: left.path)), digest)


def directory_problem(root: Path) -> str:
    """Return why there is no directory to read, or nothing."""
    if root.is_dir():
        return ""
    return "is not a directory" if root.exists() else "does not exist"


@dataclass(frozen=True)
class _Rules:
    """Hold the patterns of one ignore file and the folder they are relative to."""

    base: str
    name: str
    patterns: GitIgnoreSpec

    def verdict(self, path: str, *, is_dir: bool) -> bool | None:
        relative = path[len(self.base) :]
        return self.patterns.check_file(relative + "/" if is_dir else relative).include


class _Scanner:
    def __init__(self, root: Path, own: tuple[Path, ...]) -> None:
        self.root = root
        self.own = {path.resolve() for path in own}
        self.real_root = root.resolve()
        self.ignore_name = ".jobignore" if (root / ".jobignore").is_file() else ".gitignore"
        self.left_out: list[LeftOut] = []

    def files(self) -> Iterator[BundleFile]:
        yield from self._walk(self.root, "", [_Rules("", "the default rules", _patterns(DEFAULT_IGNORES))], ())

    def _walk(self, folder: Path, prefix: str, rules: list[_Rules], above: tuple[Path, ...]) -> Iterator[BundleFile]:
        real = folder.resolve()
        if real in above:
            raise BundleError(
                f"the link {prefix.rstrip('/')} leads back to a folder above it", "remove it or ignore it"
            )
        rules = [*rules, *self._own_rules(folder, prefix)]
        for entry in sorted(_entries(folder, prefix), key=lambda entry: entry.name):
            path = prefix + _utf8_name(entry.name, prefix)
            is_dir = _is_dir(entry, path)
            if reason := _ignored(path, rules, is_dir=is_dir) or (self._not_code(Path(entry.path)) if is_dir else ""):
                self.left_out.append(LeftOut(path + "/" * is_dir, reason))
            else:
                self._refuse_link_out(entry, path)
                if is_dir:
                    yield from self._walk(Path(entry.path), f"{path}/", rules, (*above, real))
                elif file := self._file(entry, path):
                    yield file

    def _not_code(self, folder: Path) -> str:
        if folder.resolve() in self.own:
            return "jobsubmit's own store or state"
        return "a virtual environment" if (folder / "pyvenv.cfg").is_file() else ""

    def _own_rules(self, folder: Path, prefix: str) -> list[_Rules]:
        file = folder / self.ignore_name
        if not file.is_file():
            return []
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
            return [_Rules(prefix, prefix + self.ignore_name, _patterns(lines))]
        except (OSError, ValueError) as error:
            raise BundleError(f"{prefix}{self.ignore_name} cannot be used: {error}", "it must be UTF-8 text") from error

    def _refuse_link_out(self, entry: os.DirEntry[str], path: str) -> None:
        if not entry.is_symlink():
            return
        target = Path(entry.path).resolve()
        if not target.is_relative_to(self.real_root):
            raise BundleError(
                f"the link {path} leads out of the code directory, to {target}",
                "copy the file in, or add the link to .jobignore",
            )
        if not target.exists():
            raise BundleError(f"the link {path} leads to nothing", "remove it, or add it to .jobignore")

    def _file(self, entry: os.DirEntry[str], path: str) -> BundleFile | None:
        try:
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                self.left_out.append(LeftOut(path, "not a regular file"))
                return None
            sha256, size = hash_file(Path(entry.path))
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror}", "make it readable or ignore it") from error
        return BundleFile(path, Path(entry.path), "755" if status.st_mode & stat.S_IXUSR else "644", size, sha256)


def _patterns(lines: list[str]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(lines)


def _ignored(path: str, rules: list[_Rules], *, is_dir: bool) -> str:
    """Return the name of the rules that leave a path out, or nothing; the deepest file that has an opinion wins."""
    for rule in reversed(rules):
        verdict = rule.verdict(path, is_dir=is_dir)
        if verdict is not None:
            return f"ignored by {rule.name}" if verdict else ""
    return ""


def _entries(folder: Path, prefix: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise BundleError(
            f"{prefix or folder} cannot be read: {error.strerror}", "make it readable or ignore it"
        ) from error


def _is_dir(entry: os.DirEntry[str], path: str) -> bool:
    """Tell whether an entry is a folder that can be looked into; a link that leads in circles is refused."""
    try:
        is_dir = entry.is_dir()
        if is_dir:
            (Path(entry.path) / "pyvenv.cfg").exists()
    except (OSError, RuntimeError) as error:
        raise BundleError(f"{path} cannot be read: {error}", "remove it, make it readable or ignore it") from error
    return is_dir


def _utf8_name(name: str, prefix: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BundleError(f"the name {prefix}{name!a} is not UTF-8", "rename the file or ignore it") from error
    return name


def hash_file(file: Path) -> tuple[str, int]:
    """Return (sha256, size in bytes) of a file."""
    digest, size = hashlib.sha256(), 0
    for block in read_blocks(file):
        digest.update(block)
        size += len(block)
    return digest.hexdigest(), size


def read_blocks(file: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, however large it is."""
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            yield block
