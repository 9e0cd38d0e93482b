"""A store in memory, for tests of what is decided about a store; it passes the contract suite of all stores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from jobsubmit.common.file_reading import changed_error
from jobsubmit.errors import StoreError
from jobsubmit.stores.protocol import FREELY, ObjectInfo, Source, Stored, Watch, blocks, md5_of, too_large


class MemoryStore:
    """Keep objects in a dictionary; `broken` makes every request fail."""

    is_near = False
    certificates = ""

    def __init__(self, uri: str = "memory://store") -> None:
        self.uri = uri
        self.objects: dict[str, bytes] = {}
        self.requests, self.round_trip = 0, 0.0
        self.broken = ""

    def check_key(self, key: str) -> None:
        """Refuse what no store takes (see ObjectStore)."""
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise StoreError(f"{self.uri}/{key}: no key", "rename the file")

    def put(
        self, key: str, source: Source, sha256: str, expected: str | None = None, watch: Watch = FREELY
    ) -> str | None:
        """Store an object (see ObjectStore)."""
        self.check_key(key)
        watch.before()
        self._ask()
        data = b"".join(blocks(source))
        if hashlib.sha256(data).hexdigest() != sha256:
            raise changed_error(key if isinstance(source, bytes) else source)
        if expected is not None and self._tag(key) != expected:
            return None
        self.objects[key] = data
        watch.sent(len(data))
        return self._tag(key)

    def put_stream(self, key: str, data: Iterator[bytes], most: int, watch: Watch = FREELY) -> None:
        """Store an object while it is made (see ObjectStore)."""
        whole = b"".join(data)
        self.put(key, whole, hashlib.sha256(whole).hexdigest(), watch=watch)

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        self._ask()
        if key not in self.objects:
            raise StoreError(f"{self.uri}/{key}: there is no such object")
        return self.objects[key]

    def get_to(self, key: str, file: Path, most: int) -> str:
        """Write an object to a file (see ObjectStore)."""
        data = self.get(key)
        if len(data) > most:
            raise too_large(key, most)
        file.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def get_unless(self, key: str, tag: str) -> Stored | None:
        """Return an object unless its tag is known (see ObjectStore)."""
        self._ask()
        if key not in self.objects:
            return None
        return Stored(None if self._tag(key) == tag else self.objects[key], self._tag(key))

    def tag_of(self, source: Path) -> str:
        """Return the md5 (see ObjectStore)."""
        return md5_of(source)

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object (see ObjectStore)."""
        self._ask()
        return ObjectInfo(key, len(self.objects[key]), self._tag(key)) if key in self.objects else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix (see ObjectStore)."""
        self._ask()
        for key in sorted(self.objects, key=str.encode):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(self.objects[key]), self._tag(key))

    def copy(self, source_key: str, key: str, source: Path) -> bool:
        """Do without (see ObjectStore)."""
        return False

    def delete(self, key: str) -> None:
        """Remove an object (see ObjectStore)."""
        self._ask()
        self.objects.pop(key, None)

    def url(self, key: str, expires: int) -> str:
        """Return an address that carries the object itself (see ObjectStore)."""
        return f"data:,{quote(self.get(key))}"

    def _ask(self) -> None:
        self.requests += 1
        if self.broken:
            raise StoreError(self.broken)

    def _tag(self, key: str) -> str:
        return md5_of(self.objects[key]) if key in self.objects else ""
