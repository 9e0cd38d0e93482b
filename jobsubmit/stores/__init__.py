"""Where objects are kept: the protocol every store fulfils, and the one place that picks a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from jobsubmit.bundle import read_blocks
from jobsubmit.errors import BundleError
from jobsubmit.spec.model import StoreSpec
from jobsubmit.spec.values import REMOTE_SCHEMES

Source: TypeAlias = bytes | Path


@dataclass(frozen=True)
class ObjectInfo:
    """Describe a stored object: its key below the store's prefix, and its size in bytes."""

    key: str
    size: int


class ObjectStore(Protocol):
    """Keep objects under keys; a key is text with `/`, relative to the store's own prefix.

    Every method raises StoreError, with the address and the next step, when the store refuses or cannot be reached;
    the store itself retries what may pass (connection errors, 429, 5xx), callers never do. Methods may be called from
    several threads at once.
    """

    uri: str
    """The store's own address, without a slash at the end; `uri + "/" + key` is an object's address."""

    def put(self, key: str, source: Source, sha256: str) -> None:
        """Store an object. MUST be atomic (a reader sees the old object, the whole new one or none) and MUST NOT
        return unless the bytes stored have this hex digest; a source that has another raises BundleError, since it
        changed while it was read. Putting a key twice replaces the object."""

    def get(self, key: str) -> bytes:
        """Return an object whole; a missing one is a StoreError."""

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object, or None when there is none."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in order of keys; nothing for an unknown prefix."""

    def delete(self, key: str) -> None:
        """Remove an object; removing one that is not there is fine."""

    def url(self, key: str, expires: int) -> str:
        """Return an address that anybody may GET for `expires` seconds. May be valid for longer (a folder's is);
        MUST be treated as a secret, for it may carry a signature."""


def blocks(source: Source) -> Iterable[bytes]:
    """Return the bytes of a source, a large file's in pieces."""
    return [source] if isinstance(source, bytes) else read_blocks(source)


def changed(source: Source, key: str = "") -> BundleError:
    """Return the error for a source that is not what it was when it was scanned."""
    return BundleError(f"{source if isinstance(source, Path) else key} changed while it was read", "run again")


def open_store(spec: StoreSpec) -> ObjectStore:
    """Return the store that a spec names; loads its client library only now. Contacts nothing yet."""
    uri = spec.uri or ""
    if uri.startswith(REMOTE_SCHEMES):
        from jobsubmit.stores.s3 import S3Store

        return S3Store(spec)
    from jobsubmit.stores.folder import FolderStore

    return FolderStore(Path(uri.removeprefix("file://")))
