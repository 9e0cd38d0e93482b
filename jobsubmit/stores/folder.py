"""A directory as an object store: the embedded default."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from jobsubmit.bundle import changed, hash_file
from jobsubmit.errors import StoreError
from jobsubmit.stores import ObjectInfo, Progress, Source, Stored, blocks, nothing

_TEMPORARY = ".partial-"


class FolderStore:
    """Keep each object as a file; it is written beside its place and moved there whole."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)
        self.requests = 0

    def check_key(self, key: str) -> None:
        """Refuse keys that are no path (see ObjectStore)."""
        self._path(key)

    def put(
        self, key: str, source: Source, sha256: str, expected: str | None = None, progress: Progress = nothing
    ) -> str | None:
        """Store an object (see ObjectStore); tags are looked at first."""
        if expected is not None and self._tag(key) != expected:
            return None
        target = self._path(key)
        try:
            temporary = _temporary(target)
            try:
                with temporary.open("wb") as sink:
                    written, md5 = _copy(source, sink, progress)
                if written != sha256:
                    raise changed(key if isinstance(source, bytes) else source)
                temporary.chmod(0o644)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
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
        own = _md5(data)
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
        for folder, _, names in os.walk(start):
            for name in names:
                path = Path(folder) / name
                if path.relative_to(self.root).as_posix().startswith(prefix) and not name.startswith(_TEMPORARY):
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
            for folder in path.parents:
                if folder == self.root or not folder.is_dir() or any(folder.iterdir()):
                    break
                with suppress(OSError):  # somebody has just put something into it
                    folder.rmdir()
        except OSError as error:
            raise self._error(key, error) from error

    def url(self, key: str, expires: int) -> str:
        """Return a file:// address (see ObjectStore)."""
        return self._path(key).as_uri()

    def _info(self, path: Path) -> ObjectInfo:
        status = path.stat()
        return ObjectInfo(
            path.relative_to(self.root).as_posix(), status.st_size, f"{status.st_mtime_ns}-{status.st_ino}"
        )

    def _tag(self, key: str) -> str:
        path = self._path(key)
        return _md5(path.read_bytes()) if path.is_file() else ""

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise StoreError(f"a folder cannot keep the key {key!r}", "rename the file")
        return self.root.joinpath(*parts)

    def _error(self, key: str, error: OSError) -> StoreError:
        hint = "check that the folder exists, is yours and has room, or choose another with --store"
        return StoreError(f"{self.uri}/{key}: {error.strerror or error}", hint, where=self.uri)


def _temporary(target: Path) -> Path:
    """Return a new file beside the target; its folder may be tidied away by somebody while we look."""
    while True:
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=target.parent)
            os.close(descriptor)
            return Path(name)


def _copy(source: Source, sink: BinaryIO, progress: Progress) -> tuple[str, str]:
    digest, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for block in blocks(source):
        digest.update(block)
        md5.update(block)
        sink.write(block)
        progress(len(block))
    return digest.hexdigest(), md5.hexdigest()


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
