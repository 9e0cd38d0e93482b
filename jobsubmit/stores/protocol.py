"""The protocol of object stores, and what all of them share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from jobsubmit.common.file_reading import read_blocks, size_of, vanished_error
from jobsubmit.errors import BundleError, StoreError

Source: TypeAlias = bytes | Path


class Watch:
    """Is called before each request of a put, and with the bytes that are stored; this one does nothing."""

    def before(self) -> None:
        """Return once a request may be sent; an error ends the put."""

    def sent(self, size: int) -> None:
        """Note that this many more bytes are stored."""


FREELY = Watch()


class ObjectInfo(NamedTuple):
    """A stored object: its key below the store's prefix, its size in bytes, and its tag.

    The tag changes with the content. It is empty if finding it takes reading the object: `head` returns it.
    """

    key: str
    size: int
    tag: str


class Stored(NamedTuple):
    """An object's bytes and tag; `data` is None if the caller has them already."""

    data: bytes | None
    tag: str


class ObjectStore(Protocol):
    """Keep objects under keys; a key is text with `/`, relative to the store's own prefix.

    Every method raises StoreError, with the address and a hint, when the store refuses or cannot be reached; the store
    itself retries transient failures (connection errors, time-outs, 429, 5xx) with jitter and up to a deadline, callers
    never do. Methods may be called from several threads at once.
    """

    uri: str
    """The store's own address, without a slash at the end; `uri + "/" + key` is an object's address."""

    is_near: bool
    """Whether listing all objects costs no request."""

    @property
    def certificates(self) -> str:
        """Return the authorities that nodes need, beside the public ones, to verify the server: PEM, or nothing."""

    @property
    def requests(self) -> int:
        """Return how many requests were made so far (0 if there is no server), retries included."""

    @property
    def round_trip(self) -> float:
        """Return the seconds that the fastest request took so far (0 if there is no server)."""

    def check_key(self, key: str) -> None:
        """Raise StoreError for a key that the store cannot keep. MUST NOT contact anything."""

    def put(
        self, key: str, source: Source, sha256: str, expected: str | None = None, watch: Watch = FREELY
    ) -> str | None:
        """Store an object and return its tag. MUST be atomic (a reader sees the old object, the whole new one or none)
        and MUST NOT return unless the bytes stored have this hex digest; a source with another one raises BundleError,
        since it changed while it was read. Putting a key twice replaces the object.

        With `expected` the object is stored only if the key has this tag now, or does not exist if `expected` is empty;
        otherwise None is returned and nothing changes. A store that cannot do both atomically MAY check before and
        after. `watch` MUST be called before each request with new bytes, retries too. Two callers must not put the same
        key at once: the store need not keep their pieces apart."""

    def put_stream(self, key: str, data: Iterator[bytes], most: int, watch: Watch = FREELY) -> None:
        """Store an object of at most `most` bytes that are made while they are sent. MUST be atomic, as `put` is, and
        MUST NOT return unless the bytes stored are the bytes given. What `data` raises is passed on, and nothing
        changes. `watch` as for `put`."""

    def get(self, key: str) -> bytes:
        """Return an object whole; a missing one is a StoreError."""

    def get_to(self, key: str, file: Path, most: int) -> str:
        """Write an object to a file that nobody else reads yet; return its hex digest.

        MUST NOT write more than `most` bytes, and MUST raise StoreError for an object that is larger.
        """

    def get_unless(self, key: str, tag: str) -> Stored | None:
        """Return an object whole, or None if it does not exist; MAY omit the bytes if it has this tag."""

    def tag_of(self, source: Path) -> str:
        """Return the tag that a file would get here. It may be wrong: the file then counts as different."""

    def head(self, key: str) -> ObjectInfo | None:
        """Return key, size and tag of an object, or None if it does not exist."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in order of keys; nothing for an unknown prefix."""

    def copy(self, source_key: str, key: str, source: Path) -> bool:
        """Copy an object within the store; return whether the copy is proven to hold what the local file holds.
        MAY return False without a try."""

    def delete(self, key: str) -> None:
        """Remove an object; one that does not exist is not an error."""

    def url(self, key: str, expires: int) -> str:
        """Return an address that anybody may GET for `expires` seconds. May be valid for longer (a folder's is);
        MUST be treated as a secret, for it may carry a signature."""


def blocks(source: Source) -> Iterator[bytes]:
    """Yield the bytes of a source, a large file's in pieces; raise BundleError if it cannot be read (any more)."""
    if isinstance(source, bytes):
        yield source
        return
    try:
        yield from read_blocks(str(source))
    except OSError as error:
        raise vanished_error(source, error) from error


def too_large(address: str, most: int) -> StoreError:
    """Return the error for an object that is larger than expected."""
    text = f"{address} is larger than the {most:,} bytes that were expected"
    return StoreError(text, "upload it again: the object in the store has changed", where=address)


def md5_of(source: Source) -> str:
    """Return the md5 of a source in hex, as in a tag, or nothing if it cannot be read."""
    md5 = hashlib.md5(usedforsecurity=False)
    try:
        for block in blocks(source):
            md5.update(block)
    except BundleError:
        return ""
    return md5.hexdigest()


PART = 8 << 20
_MOST_PARTS = 9_000


def part_size(size: int) -> int:
    """Return the size of the parts of a large object of this size, in bytes."""
    return max(PART, -(-size // _MOST_PARTS))


def parts(data: Iterator[bytes], most: int) -> Iterator[bytearray]:
    """Yield the parts in which an object of at most `most` bytes is stored."""
    size = part_size(most)
    part = bytearray()
    for block in data:
        view = memoryview(block)
        while len(part) + len(view) >= size:
            room = size - len(part)
            part += view[:room]
            yield part
            part, view = bytearray(), view[room:]
        part += view
    if part:
        yield part


def part_tag(sums: Sequence[bytes]) -> str:
    """Return the ETag of an object that was put in parts: the md5 of its parts' md5 sums, and how many there are."""
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"


def part_tag_of(source: Path) -> str:
    """Return the ETag that a file would get if it was put in parts."""
    pieces = parts(blocks(source), size_of(source))
    return part_tag([hashlib.md5(part, usedforsecurity=False).digest() for part in pieces])
