"""A directory as an object store: the embedded default."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from jobsubmit.bundle import changed, hash_file
from jobsubmit.errors import StoreError
from jobsubmit.stores import ObjectInfo, Progress, Source, Stored, blocks, md5_of, nothing

# Objects are written here first. What a killed process left here is removed once it is a day old.
_UNFINISHED = ".jobsubmit-unfinished"
_OLD_SECONDS = 24 * 3600
_UMASK = os.umask(0o077)
os.umask(_UMASK)  # it can only be read by setting it


class FolderStore:
    """Keep each object as a file; it is written elsewhere in the folder and moved to its place whole."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)
        self.requests = 0
        self._unfinished = self.root / _UNFINISHED
        self._is_tidy = False

    def check_key(self, key: str) -> None:
        """Refuse keys that are no path (see ObjectStore)."""
        self._path(key)

    def put(
        self, key: str, source: Source, sha256: str, expected: str | None = None, progress: Progress = nothing
    ) -> str | None:
        """Store an object (see ObjectStore); where the system cannot lock a folder, tags are looked at first."""
        target = self._path(key)
        try:
            temporary = self._temporary()
            try:
                with temporary.open("wb") as sink:
                    written, md5 = _copy(source, sink, progress)
                if written != sha256:
                    raise changed(key if isinstance(source, bytes) else source)
                temporary.chmod(0o666 & ~_UMASK)
                with _only_one(self._unfinished) if expected is not None else nullcontext():
                    if expected is not None and self._tag(key) != expected:
                        return None
                    _move(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
                with suppress(OSError):  # somebody else is at work
                    self._unfinished.rmdir()
        except OSError as error:
            raise self._error(key, error) from error
        return md5

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        try:
            return self._path(key).read_bytes()
        except OSError as error:
            raise self._error(key, error) from error

    def get_to(self, key: str, file: Path) -> str:
        """Copy an object to a file (see ObjectStore)."""
        try:
            shutil.copyfile(self._path(key), file)
            return hash_file(str(file))[0]
        except OSError as error:
            raise self._error(key, error) from error

    def get_unless(self, key: str, tag: str) -> Stored | None:
        """Return an object unless its tag is known (see ObjectStore)."""
        if self.head(key) is None:
            return None
        data = self.get(key)
        own = md5_of(data)
        return Stored(None if own == tag else data, own)

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object (see ObjectStore)."""
        path = self._path(key)
        try:
            return self._info(path) if path.is_file() else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(key, error) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix (see ObjectStore)."""
        start = self.root / prefix.rpartition("/")[0]
        found = []
        for folder, folders, names in os.walk(start):
            if folder == self.uri and _UNFINISHED in folders:
                folders.remove(_UNFINISHED)
            for name in names:
                path = Path(folder) / name
                if path.relative_to(self.root).as_posix().startswith(prefix):
                    with suppress(FileNotFoundError):  # it has just gone, or is a link to nothing
                        found.append(self._info(path))
        yield from sorted(found, key=lambda info: info.key.encode())

    def copy(self, source_key: str, key: str, source: Path) -> bool:
        """Do without: reading the local file is as near as reading the stored one (see ObjectStore)."""
        return False

    def delete(self, key: str) -> None:
        """Remove an object and the folders it leaves empty (see ObjectStore)."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise self._error(key, error) from error
        with suppress(OSError):  # one is not empty, or gone
            for folder in path.parents:
                if folder == self.root:
                    break
                folder.rmdir()

    def url(self, key: str, expires: int) -> str:
        """Return a file:// address (see ObjectStore)."""
        return self._path(key).as_uri()

    def _temporary(self) -> Path:
        """Return a new file; the folder of such files may be tidied away by somebody while we look."""
        if not self._is_tidy:
            self._is_tidy = True
            for file in self._unfinished.glob("*"):
                with suppress(FileNotFoundError):
                    if time.time() - file.stat().st_mtime > _OLD_SECONDS:
                        file.unlink()
        while True:
            _make(self._unfinished)
            with suppress(FileNotFoundError):
                descriptor, name = tempfile.mkstemp(dir=self._unfinished)
                os.close(descriptor)
                return Path(name)

    def _info(self, path: Path) -> ObjectInfo:
        status = path.stat()
        return ObjectInfo(
            path.relative_to(self.root).as_posix(), status.st_size, f"{status.st_mtime_ns}-{status.st_ino}"
        )

    def _tag(self, key: str) -> str:
        path = self._path(key)
        return md5_of(path) if path.is_file() else ""

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or parts[0] == _UNFINISHED:
            raise StoreError(f"a folder cannot keep the key {key!r}", "rename the file")
        return self.root.joinpath(*parts)

    def _error(self, key: str, error: OSError) -> StoreError:
        hint = "check that the folder exists, is yours and has room, or choose another with --store"
        return StoreError(f"{self.uri}/{key}: {error.strerror or error}", hint, where=self.uri)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Let one process at a time look and move."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _move(file: Path, target: Path) -> None:
    """Put a file in its place; the folder there may be tidied away by somebody while we look."""
    while True:
        _make(target.parent)
        with suppress(FileNotFoundError):
            file.replace(target)
            return


def _make(folder: Path) -> None:
    """Make a folder that somebody may remove at the same moment."""
    while not folder.is_dir():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if os.path.lexists(folder) and not folder.is_dir():
                raise


def _copy(source: Source, sink: BinaryIO, progress: Progress) -> tuple[str, str]:
    digest, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for block in blocks(source):
        digest.update(block)
        md5.update(block)
        sink.write(block)
        progress(len(block))
    return digest.hexdigest(), md5.hexdigest()
