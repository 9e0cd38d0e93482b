"""Fetch the code and the start script of a job onto a node, and verify both before anything runs.

As a program it takes TARGET as its argument, and a FetchOrder on standard input, whose addresses may be signed. Code
that was not uploaded by jobsubmit has no manifest; then `sizes` lists the expected files.

On success TARGET contains the code folder and start.sh, and the digests are printed as JSON. A digest that differs, a
path that leaves the folder or a file that is not in the manifest ends the program with exit code 1 and one line on
stderr; an incomplete folder is never moved into place.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

from .authorities import trust
from .retry import PASSING_STATUSES, pause_before

# The client uses parts of this file too: what only a node needs (network, tar) is loaded where it is used.
TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Protocol

    from .protocol import FetchCode, FetchOrder, ManifestEntry

    class Readable(Protocol):
        """A stream that can be read in blocks."""

        def read(self, size: int, /) -> bytes: ...


CACHED = "cached:"  # the address of what is only in the cache of a host
ATTEMPTS = 4
TIMEOUT_SECONDS = 60
CHUNK = 1 << 20
PARALLEL = 16
LARGEST_MANIFEST, LARGEST_SCRIPT = 256 << 20, 16 << 20  # bytes
DEEPEST = 500  # folders
LARGEST_FILE = 1 << 50  # bytes; no store takes a larger one
_ENTRIES_AT_ONCE = 2048
_PER_ENTRY = 4096  # bytes of an archive, at most, for the name of a file and its attributes


class FetchError(Exception):
    """The code could not be fetched; the message is one line that says why."""


def tree_digest(files: Iterable[tuple[str, str, str]], directories: Iterable[str] = ()) -> str:
    """Return the digest of a tree: sha256 over the (path, mode, sha256) of its files, and over its empty directories.

    Times and the kind of packing do not change it.
    """
    entries = [*files, *((directory + "/", "", "") for directory in directories)]
    entries.sort()  # as their lines would be: no path has a NUL
    digest = hashlib.sha256()
    for start in range(0, len(entries), _ENTRIES_AT_ONCE):  # all lines together may be larger than all else
        lines = ["%s\0%s\0%s" % entry for entry in entries[start : start + _ENTRIES_AT_ONCE]]
        digest.update((("\0" if start else "") + "\0".join(lines)).encode())
    return digest.hexdigest()


def fetch(order: FetchOrder, target: str) -> dict[str, str | None]:
    """Fetch what the order names into `target`; return the verified digests."""
    if order["code_name"] in ("", ".", "..", "start.sh") or "/" in order["code_name"]:
        raise FetchError("%r cannot be the name of the code folder" % order["code_name"])
    import shutil
    import tempfile

    if order.get("certificates"):
        trust(order["certificates"])
    os.makedirs(target, exist_ok=True)
    work = tempfile.mkdtemp(prefix=".fetch-", dir=target)
    try:
        script = os.path.join(work, "start.sh")
        digest, _ = download(order["script"]["url"], script, LARGEST_SCRIPT)
        if digest != order["script"]["sha256"]:
            raise FetchError("the start script in the store differs from the one that was submitted")
        code = os.path.join(work, "code")
        os.mkdir(code)
        proven = fetch_code(order["code"], code, work)
        destination = os.path.join(target, order["code_name"])
        if os.path.exists(destination):
            shutil.rmtree(destination)
        os.rename(code, destination)
        os.rename(script, os.path.join(target, "start.sh"))
        return {"script": digest, "code": proven}
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetch_file(url: str, file: str) -> None:
    """Fetch one file, whole or not at all; whoever reads it later proves it. Raises FetchError."""
    partial = "%s.%d" % (file, os.getpid())
    try:
        download(url, partial, LARGEST_FILE)
        os.replace(partial, file)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def fetch_code(code: FetchCode, folder: str, work: str) -> str | None:
    if "manifest" not in code:
        require_room(folder, code["sizes"].values())
        for path, (_, size) in _each_file(code["files"], folder, code["sizes"]):
            if size != code["sizes"][path]:
                raise FetchError("%s arrived with %d bytes instead of %d" % (path, size, code["sizes"][path]))
        return None
    manifest_file = os.path.join(work, "manifest.json")
    download(code["manifest"], manifest_file, LARGEST_MANIFEST)
    with open(manifest_file, encoding="utf-8") as stream:
        manifest = json.load(stream)
    files = index_entries(manifest["files"])
    directories = manifest.get("directories", [])
    if tree_digest(((f["path"], f["mode"], f["sha256"]) for f in files.values()), directories) != code["digest"]:
        raise FetchError("the manifest in the store does not belong to the code that was submitted")
    for directory in directories:
        os.makedirs(safe_path(folder, directory), exist_ok=True)
    sizes = {path: entry["size"] for path, entry in files.items()}
    if code["layout"] == "archive":
        archive = os.path.join(work, "code.tar.gz")
        most = largest_archive(sizes.values(), len(directories))
        require_room(folder, sizes.values())
        download(code["archive"], archive, most)
        extract(archive, files, directories, folder)
    else:
        missing = set(files) - set(code["files"])
        if missing:
            raise FetchError("the fetch order has no address for %s" % sorted(missing)[0])
        require_room(folder, sizes.values())
        for path, (digest, _) in _each_file({path: code["files"][path] for path in files}, folder, sizes):
            _prove(os.path.join(folder, path), path, digest, files[path])
    return str(code["digest"])


def index_entries(listed: Iterable[ManifestEntry]) -> dict[str, ManifestEntry]:
    """Return the files of a manifest by path; raise FetchError for a duplicate path or an invalid size."""
    found = {}  # type: dict[str, ManifestEntry]
    for entry in listed:
        path, size = entry["path"], entry["size"]
        if path in found:
            raise FetchError("the manifest lists %r twice" % path)
        if type(size) is not int or not 0 <= size <= LARGEST_FILE:
            raise FetchError("the manifest lists %r with an invalid size of %r bytes" % (path, size))
        found[path] = entry
    return found


def largest_archive(sizes: Iterable[int], directories: int) -> int:
    """Return the maximum size of an archive of such files in bytes, compressed or not."""
    listed = list(sizes)
    return sum(listed) + (len(listed) + directories + 1) * _PER_ENTRY + (1 << 20)


def require_room(folder: str, sizes: Iterable[int]) -> None:
    """Raise FetchError if a disk has no room for files of these sizes."""
    import shutil

    needed, disk = sum(sizes), shutil.disk_usage(folder)
    if disk.total and needed > disk.free:  # some file systems do not say how large they are
        raise FetchError("it needs {:,} bytes, but the disk of {} has only {:,} left".format(needed, folder, disk.free))


def _each_file(addresses: dict[str, str], folder: str, sizes: Mapping[str, int]) -> list[tuple[str, tuple[str, int]]]:
    from concurrent.futures import ThreadPoolExecutor

    for path in addresses:
        safe_path(folder, path)
    with ThreadPoolExecutor(PARALLEL) as pool:
        arrived = pool.map(lambda path: download(addresses[path], safe_path(folder, path), sizes[path]), addresses)
        return list(zip(addresses, arrived))


class _Bounded:
    """Read at most the expected bytes of a stream: a small archive may expand to an endless file."""

    def __init__(self, stream: Readable, most: int) -> None:
        self.stream, self.left = stream, most

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        data = bytes(self.stream.read(size))
        self.left -= len(data)
        if self.left < 0:
            raise FetchError("the archive holds more than its manifest lists")
        return data


def extract(archive: str, files: Mapping[str, ManifestEntry], directories: Iterable[str], folder: str) -> None:
    """Unpack exactly the files and empty directories that a manifest lists, and verify them; refuse everything else."""
    import gzip
    import tarfile

    missing, empty = set(files), set(directories)
    made = set()  # type: set[str]
    most = largest_archive((entry["size"] for entry in files.values()), len(empty))
    open_tar: Any = tarfile.open  # it takes whatever can be read
    with gzip.open(archive) as packed, open_tar(fileobj=_Bounded(packed, most), mode="r|") as tar:
        for member in tar:
            name = member.name
            if member.isdir() and name in empty:
                os.makedirs(safe_path(folder, name), exist_ok=True)
                continue
            if name not in missing or not member.isreg():
                raise FetchError("the archive holds %r, which the manifest does not list" % name)
            if member.size != files[name]["size"]:
                raise FetchError("%s is not the file that was submitted" % name)
            source = tar.extractfile(member)
            assert source
            above = os.path.dirname(name)
            destination = safe_path(folder, name, is_made=above in made)
            made.add(above)
            digest, _ = write(source, destination, member.size)
            _prove(destination, name, digest, files[name])
            missing.remove(name)
            tar.members = []  # it would keep them all
    if missing:
        raise FetchError("the archive lacks %s" % sorted(missing)[0])


def _prove(file: str, path: str, digest: str, entry: ManifestEntry) -> None:
    """Raise FetchError unless what was written has the digest that its manifest lists; give it its mode."""
    if digest != entry["sha256"]:
        raise FetchError("%s is not the file that was submitted" % path)
    made = os.stat(file).st_mode  # by the umask: whoever may read a file may execute it, too
    os.chmod(file, (0o755 if entry["mode"] == "755" else 0o644) & (made | (made & 0o444) >> 2))


def safe_path(folder: str, path: str, is_made: bool = False) -> str:
    """Return the path of a manifest's file, and create its folder; raise FetchError if it would leave `folder`."""
    parts = path.split("/")
    if not path or "\0" in path or len(parts) > DEEPEST or any(part in ("", ".", "..") for part in parts):
        raise FetchError("the path %r would leave the code folder" % path)
    file = os.path.join(folder, *parts)
    if not is_made:
        os.makedirs(os.path.dirname(file), exist_ok=True)
    return file


def download(url: str, file: str, most: int) -> tuple[str, int]:
    """Return (sha256, size in bytes) of what arrived, `most` bytes at most; retry transient errors."""
    problem = None  # type: Exception | None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _download_once(url, file, most)
        except OSError as error:
            problem = error
        if attempt < ATTEMPTS:
            time.sleep(pause_before(attempt, first=1.0))
    raise FetchError("%s: %s" % (_shown(url), problem))


def _download_once(url: str, file: str, most: int) -> tuple[str, int]:
    if url == CACHED:
        raise FetchError("the code is no longer in the cache of this host: submit the job again")
    digest, size, expected = _copy(url, file, most) if url.startswith("file://") else _receive(url, file, most)
    if size > most:
        raise FetchError("%s holds more than the %d bytes that were promised" % (_shown(url), most))
    if expected is not None and size != int(expected):
        raise OSError("the connection ended after %d of %s bytes" % (size, expected))
    return digest, size


def _copy(url: str, file: str, most: int) -> tuple[str, int, int]:
    """Return the digest and the size of what was copied, and the size of the file."""
    path = path_of(url)
    _require_regular(path)
    with open(path, "rb") as source:
        return (*write(source, file, most), os.fstat(source.fileno()).st_size)


def path_of(url: str) -> str:
    """Return the path of a file:// address."""
    from urllib.parse import unquote_to_bytes

    return os.fsdecode(unquote_to_bytes(url[len("file://") :]))


def _receive(url: str, file: str, most: int) -> tuple[str, int, str | None]:
    """Return the digest and the size of what arrived, and the size that was announced."""
    import http.client
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as source:
            return (*write(source, file, most), source.headers.get("Content-Length"))
    except urllib.error.HTTPError as error:
        if error.code not in PASSING_STATUSES:
            raise FetchError("the store answered %d for %s" % (error.code, _shown(url))) from None
        raise
    except http.client.HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error


def _require_regular(path: str) -> None:
    import stat

    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise FetchError("%s is not a file" % path)


def write(source: Readable, file: str, most: int) -> tuple[str, int]:
    """Write a stream to a file, until it has more than `most` bytes; return its (sha256, size in bytes)."""
    digest, size = hashlib.sha256(), 0
    with open(file, "wb") as sink:
        for block in iter(lambda: source.read(CHUNK), b""):
            digest.update(block)
            size += len(block)
            if size > most:
                break
            sink.write(block)
    return digest.hexdigest(), size


def _shown(url: str) -> str:
    """Return an address without its signature."""
    return url.partition("?")[0]


def fetch_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that `fetch` may raise for an order that cannot be fetched."""
    import tarfile
    import zlib

    damaged = (tarfile.TarError, zlib.error, EOFError, ValueError, LookupError, TypeError, RecursionError)
    return (FetchError, OSError, *damaged)


def try_fetch(order: FetchOrder, target: str) -> dict[str, str | None] | None:
    """Return what `fetch` returns; None if it failed, and one line on stderr says why."""
    try:
        return fetch(order, target)
    except fetch_errors() as error:
        sys.stderr.write("jobsubmit: the code could not be fetched: %s\n" % (str(error) or type(error).__name__))
        return None


def main() -> int:
    """Fetch the order given on standard input."""
    proven = try_fetch(json.load(sys.stdin), sys.argv[1])
    if proven is None:
        return 1
    json.dump(proven, sys.stdout)
    return 0
