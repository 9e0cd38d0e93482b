"""Read files that were scanned before, or report that they have changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from jobsubmit.errors import BundleError

BLOCK = 1 << 20


def changed_error(what: object) -> BundleError:
    """Return the error for a file that has changed since it was scanned."""
    return BundleError(f"{what} changed while it was read", "stop writing to it, then try again")


def vanished_error(what: object, error: OSError) -> BundleError:
    """Return the error for a file that could not be read although it was scanned."""
    return BundleError(f"{what} changed or disappeared while it was read: {error.strerror}", "try again")


def hash_file(file: str) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    for block in read_blocks(file):
        digest.update(block)
    return digest.hexdigest()


def read_blocks(file: str) -> Iterator[bytes]:
    """Yield the bytes of a file, however large it is."""
    with open(file, "rb", buffering=0) as stream:
        while block := stream.read(BLOCK):
            yield block


def read_whole(file: Path) -> bytes:
    """Return the bytes of a file that was scanned; raise BundleError if it can no longer be read."""
    try:
        with open(file, "rb", buffering=0) as stream:
            return stream.readall()
    except OSError as error:
        raise vanished_error(file, error) from error


def size_of(file: Path) -> int:
    """Return the size of a file that was scanned, in bytes; raise BundleError if it no longer exists."""
    try:
        return os.stat(file).st_size
    except OSError as error:
        raise vanished_error(file, error) from error
