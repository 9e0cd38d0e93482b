"""The code and the start scripts that a host keeps: fetched, or received from the client, once for each content.

Below `cache/` of the host's folder: code/DIGEST/archive and manifest, scripts/DIGEST. A job proves what it takes from
there in the same way as what it fetches, and what cannot be proven is removed.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from .. import fetch
from ..atomic_write import make_private, replace_file
from ..authorities import trust
from ..locks import INPUT_LOCK, is_locked
from ..protocol import FetchCode, FetchOrder

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_BYTES = 20 << 30
_BLOCK = 1 << 20
_ARCHIVE, _MANIFEST = "archive", "manifest"


def _cache(root: str) -> str:
    return os.path.join(root, "cache")


def _path(root: str, name: str) -> str:
    """Return the path of an entry, e.g. `scripts/DIGEST`; raise ValueError for a name that is none."""
    parts = name.split("/")
    if parts[0] not in ("code", "scripts") or not all(part.isalnum() for part in parts):
        raise ValueError("%r is not a name in the cache" % name)
    return os.path.join(_cache(root), *parts)


def missing(root: str, names: list[str]) -> list[str]:
    """Return those of the entries that this host does not have."""
    return [name for name in names if not os.path.isfile(_path(root, name))]


def put(root: str, name: str, size: int, read: Callable[[int], bytes]) -> None:
    """Receive an entry of so many bytes; raise OSError if the connection ends early, or the disk is full."""
    path = _path(root, name)
    make_private(os.path.dirname(path))

    def blocks() -> Any:
        left = size
        while left:
            block = read(min(left, _BLOCK))
            if not block:
                raise OSError(0, "the connection ended before the code was complete")
            left -= len(block)
            yield block

    replace_file(path, blocks())


def fill(root: str, order: FetchOrder) -> FetchOrder:
    """Return the order with what this host keeps, after fetching what it does not; other parts stay as they are.

    Raises what `fetch` raises.
    """
    if order.get("certificates"):
        trust(order["certificates"])
    script = order["script"]
    kept: FetchOrder = {**order, "script": {**script, "url": _kept(root, "scripts/" + script["sha256"], script["url"])}}
    code = order["code"]
    if "archive" in code and "digest" in code and "manifest" in code:
        name = "code/" + code["digest"]
        addresses: FetchCode = {
            **code,
            "archive": _kept(root, name + "/" + _ARCHIVE, code["archive"]),
            "manifest": _kept(root, name + "/" + _MANIFEST, code["manifest"]),
        }
        kept["code"] = addresses
    return kept


def _kept(root: str, name: str, address: str) -> str:
    path = _path(root, name)
    if not os.path.isfile(path):
        make_private(os.path.dirname(path))
        fetch.fetch_file(address, path)
    os.utime(path)
    os.utime(os.path.dirname(path))
    return "file://" + path


def local_files(order: FetchOrder) -> dict[str, str]:
    """Return the entries whose addresses are files of the client, and the path of each."""
    code = order["code"]
    addresses = {"scripts/" + order["script"]["sha256"]: order["script"]["url"]}
    if "archive" in code and "manifest" in code:
        name = "code/" + code.get("digest", "")
        addresses.update({name + "/" + _ARCHIVE: code["archive"], name + "/" + _MANIFEST: code["manifest"]})
    return {name: fetch.path_of(url) for name, url in addresses.items() if url.startswith("file://")}


def as_cached(order: FetchOrder) -> FetchOrder:
    """Return the order with the cache in the place of the client's files."""

    def cached(address: str) -> str:
        return fetch.CACHED if address.startswith("file://") else address

    code = order["code"].copy()
    if "archive" in code and "manifest" in code:
        code["archive"], code["manifest"] = cached(code["archive"]), cached(code["manifest"])
    return {**order, "script": {**order["script"], "url": cached(order["script"]["url"])}, "code": code}


def forget(root: str, order: FetchOrder) -> None:
    """Remove what an order takes from the cache, because it could not be proven."""
    shutil.rmtree(_path(root, "code/" + order["code"].get("digest", "none")), ignore_errors=True)
    try:
        os.unlink(_path(root, "scripts/" + order["script"]["sha256"]))
    except OSError:
        pass


def size(root: str) -> int:
    """Return the bytes of the whole cache."""
    return _size_of(_cache(root))


def _size_of(path: str) -> int:
    if not os.path.isdir(path):
        return os.lstat(path).st_size if os.path.lexists(path) else 0
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def trim(root: str, most: int) -> None:
    """Remove the entries that were not used for the longest time, until so many bytes are left."""
    entries = []
    for kind in ("code", "scripts", "inputs"):
        folder = os.path.join(_cache(root), kind)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if "." in name:
                continue  # a lock, or what is being fetched now
            with suppress(OSError):  # another job has removed it
                if not is_locked(path + INPUT_LOCK):  # no node reads it
                    entries.append((os.stat(path).st_mtime, _size_of(path), path))
    left = sum(entry[1] for entry in entries)
    for _, bytes_of_entry, path in sorted(entries):
        if left <= most:
            return
        left -= bytes_of_entry
        with suppress(OSError):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
