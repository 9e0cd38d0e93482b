"""A directory as an object store: the embedded default."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from jobsubmit.errors import StoreError
from jobsubmit.stores import ObjectInfo, Source, blocks, changed

_TEMPORARY = ".partial-"


class FolderStore:
    """Keep each object as a file; it is written beside its place and moved there whole."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = str(self.root)

    def put(self, key: str, source: Source, sha256: str) -> None:
        """Store an object (see ObjectStore)."""
        target = self._path(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=target.parent)
            temporary = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as sink:
                    written = _copy(source, sink)
                if written != sha256:
                    raise changed(source, key)
                temporary.chmod(0o644)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise self._error(key, error) from error

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        try:
            return self._path(key).read_bytes()
        except OSError as error:
            raise self._error(key, error) from error

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object (see ObjectStore)."""
        try:
            path = self._path(key)
            return ObjectInfo(key, path.stat().st_size) if path.is_file() else None
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
                key = path.relative_to(self.root).as_posix()
                if key.startswith(prefix) and not name.startswith(_TEMPORARY):
                    found.append(ObjectInfo(key, path.stat().st_size))
        yield from sorted(found, key=lambda info: info.key.encode())

    def delete(self, key: str) -> None:
        """Remove an object and the folders it leaves empty (see ObjectStore)."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self.root or not folder.is_dir() or any(folder.iterdir()):
                    break
                folder.rmdir()
        except OSError as error:
            raise self._error(key, error) from error

    def url(self, key: str, expires: int) -> str:
        """Return a file:// address (see ObjectStore)."""
        return self._path(key).as_uri()

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise StoreError(f"a folder cannot keep the key {key!r}", "rename the file")
        return self.root.joinpath(*parts)

    def _error(self, key: str, error: OSError) -> StoreError:
        hint = "check that the folder exists, is yours and has room, or choose another with --store"
        return StoreError(f"{self.uri}/{key}: {error.strerror or error}", hint, where=self.uri)


def _copy(source: Source, sink: BinaryIO) -> str:
    digest = hashlib.sha256()
    for block in blocks(source):
        digest.update(block)
        sink.write(block)
    return digest.hexdigest()
