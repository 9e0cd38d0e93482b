"""Copy data between this node and buckets: inputs and checkpoints before the start, outputs and checkpoints after it.

As a program it reads a Load from standard input. Nodes share nothing: each sends what it has written, oldest first, so
that a file that names others (`latest`) arrives after them; a restarted node gets what all nodes have sent. What the
node has changed since it was sent or fetched is not overwritten.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys

from .. import fetch
from ..atomic_write import append_whole, make_private, read_file
from ..authorities import trust
from ..locks import INPUT_LOCK
from ..protocol import DataAccess, FetchCode
from .bucket import Bucket, BucketError

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypedDict

    class Load(TypedDict):
        """What to copy: `inputs` or `outputs`. `cache` is where inputs stay, `known` is the file of what was copied."""

        what: str
        access: DataAccess
        mounts: list[dict[str, Any]]
        checkpoints_of: str
        cache: str
        known: str


_ERRORS = (BucketError, *fetch.fetch_errors())  # type: tuple[type[Exception], ...]
_PART = ".jobsubmit-part"  # the end of a name, until the file is complete
_MANIFEST, _ARCHIVE = ".manifest.json", ".tar.gz"


class Carrier:
    """Copies the data of one node."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.known = _read_known(load["known"])  # of each copied file, by its path: time of change and size

    def run(self) -> int:
        """Copy everything; return the exit code."""
        failed = 0
        carry = self._bring if self.load["what"] == "inputs" else self._send
        for mount in self.load["mounts"]:
            try:
                carry(mount)
            except _ERRORS as error:
                text = "%s %s: %s" % (mount["kind"], mount["name"], str(error) or type(error).__name__)
                sys.stderr.write("jobsubmit: %s\n" % text)
                failed = 1
        return failed

    def _note(self, name: str, value: Any) -> None:
        """Remember something beyond the end of this process, however that ends."""
        self.known[name] = value
        append_whole(self.load["known"], json.dumps([name, value]).encode() + b"\n")

    def _place(self, mount: dict[str, Any]) -> tuple[Bucket, str]:
        """Return the bucket of a mount, and the key of its folder."""
        name, _, key = mount["uri"].partition("://")[2].rstrip("/").partition("/")
        if mount["kind"] == "checkpoint":
            key = "/".join(filter(None, (key, self.load["checkpoints_of"])))
        return Bucket(name, self.load["access"]), key

    # ── before the start ────────────────────────────────────────────────────────────────────────────────────────────

    def _bring(self, mount: dict[str, Any]) -> None:
        bucket, key = self._place(mount)
        if mount["kind"] == "checkpoint":
            self._bring_checkpoints(bucket, key, mount["path"])
        elif mount["kind"] == "input":
            self._bring_input(bucket, key, mount["path"])

    def _bring_input(self, bucket: Bucket, key: str, path: str) -> None:
        """Link an input to a copy in the cache: one for each content, whichever jobs read it."""
        code, digest = _find_tree(bucket, key)
        cache = self.load["cache"]
        make_private(cache)
        target = os.path.join(cache, digest)
        with open(target + INPUT_LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.isdir(target):
                fetch_whole(code, target)
            os.utime(target)
        if os.path.islink(path):
            os.unlink(path)
        os.symlink(target, path)

    def _bring_checkpoints(self, bucket: Bucket, key: str, path: str) -> None:
        """Fetch what any node has sent, unless this node has it, or something newer."""
        os.makedirs(path, exist_ok=True)
        manifest = bucket.read(key + _MANIFEST)
        if manifest is not None:  # of a job that ran on one machine: there it says which files belong together
            code, _ = _find_tree(bucket, key)
            work = os.path.join(os.path.dirname(path), "checkpoints.new")
            fetch_whole(code, work)
            listed = [(name, os.path.join(work, name)) for name in _files_below(work)]
            for name, source in listed:
                self._put_in_place(source, os.path.join(path, name))
            shutil.rmtree(work, ignore_errors=True)
            return
        for name, size, tag in bucket.list(key + "/"):
            relative = name[len(key) + 1 :]
            if not relative or relative.endswith("/"):
                continue
            destination = fetch.safe_path(path, relative)
            is_sent = "sent:" + destination in self.known and not os.path.exists(destination)
            if is_sent or self.known.get("tag:" + destination) == tag or self._is_own(destination):
                continue  # this node has removed it, has it, or has something newer
            fetch.require_room(path, [size])
            temporary = destination + _PART
            fetch.download(bucket.address(name), temporary, size)
            self._put_in_place(temporary, destination)
            self._note("tag:" + destination, tag)

    def _is_own(self, path: str) -> bool:
        """Return whether this node has written a file since it was copied."""
        is_sent = "sent:" + path in self.known
        return os.path.exists(path) and (is_sent or self.known.get(path) != _mark_of(path))

    def _put_in_place(self, source: str, path: str) -> None:
        if not self._is_own(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._note(path, _mark_of(source))  # first: it keeps time and size, and must not look like one of our own
            os.replace(source, path)

    # ── while it runs, and at its end ───────────────────────────────────────────────────────────────────────────────

    def _send(self, mount: dict[str, Any]) -> None:
        if not mount["every"] or not os.path.isdir(mount["path"]):
            return
        bucket, key = self._place(mount)
        names = [os.path.join(mount["path"], name) for name in _files_below(mount["path"])]
        marked = sorted((_mark_of(name), name) for name in names)
        changed = [(mark, name) for mark, name in marked if mark and self.known.get(name) != mark]
        if changed and "manifest:" + key not in self.known:
            bucket.remove(key + _MANIFEST)  # of an earlier job: it would hide what is sent now
            self._note("manifest:" + key, True)
        sent = 0
        for mark, name in changed:
            try:
                bucket.write(key + "/" + os.path.relpath(name, mount["path"]), name)
            except FileNotFoundError:
                continue  # the training has removed it
            if _mark_of(name) == mark:  # else it was written meanwhile, and is sent again
                self._note(name, mark)
                self._note("sent:" + name, True)
            sent += 1
        if sent:
            address = "%s/%s" % (bucket.name, key)
            sys.stderr.write("jobsubmit: %s %s: files sent to %s: %d\n" % (mount["kind"], mount["name"], address, sent))


def _find_tree(bucket: Bucket, key: str) -> tuple[FetchCode, str]:
    """Return what to fetch of a folder in a bucket, and the digest of its content; raise FetchError if it is empty."""
    for form in (key, key + _ARCHIVE):
        data = bucket.read(form + _MANIFEST)
        if data is None:
            continue
        manifest = json.loads(data)
        digest = str(manifest["digest"])
        addresses = {"layout": manifest["layout"], "manifest": bucket.address(form + _MANIFEST), "digest": digest}
        if manifest["layout"] == "archive":
            return {**addresses, "archive": bucket.address(form)}, digest  # type: ignore[typeddict-item] # one by one
        paths = fetch.index_entries(manifest["files"])
        files = {path: bucket.address("%s/%s" % (form, path)) for path in paths}
        return {**addresses, "files": files}, digest  # type: ignore[typeddict-item] # one by one
    listed = {name[len(key) + 1 :]: (name, size, tag) for name, size, tag in bucket.list(key + "/")}
    found = {path: entry for path, entry in listed.items() if path and not path.endswith("/")}
    if not found:
        raise fetch.FetchError("s3://%s/%s: there is nothing to download" % (bucket.name, key))
    digest = hashlib.sha256(json.dumps([bucket.base, sorted(found.values())]).encode()).hexdigest()
    files = {path: bucket.address(name) for path, (name, _, _) in found.items()}
    return {"layout": "tree", "files": files, "sizes": {path: size for path, (_, size, _) in found.items()}}, digest


def fetch_whole(code: FetchCode, target: str) -> None:
    """Fetch a tree into a new folder, which appears when it is complete."""
    work = "%s.%d" % (target, os.getpid())
    try:
        os.makedirs(os.path.join(work, "tree"))
        fetch.fetch_code(code, os.path.join(work, "tree"), work)
        os.rename(os.path.join(work, "tree"), target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _files_below(folder: str) -> Iterator[str]:
    for above, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)
            if os.path.isfile(path) and not name.endswith(_PART):
                yield os.path.relpath(path, folder)


def _mark_of(path: str) -> list[int]:
    """Return time of change and size of a file, as JSON keeps them; empty if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_mtime_ns, status.st_size]


def _read_known(path: str) -> dict[str, Any]:
    try:
        lines = read_file(path).split(b"\n")
    except OSError:
        return {}
    found = {}
    for line in lines:
        try:
            name, value = json.loads(line)
        except (ValueError, TypeError):
            continue  # incomplete
        found[name] = value
    return found


def main() -> int:
    """Copy the load given on standard input."""
    load: Load = json.load(sys.stdin)
    if load["access"]["certificates"]:
        trust(load["access"]["certificates"])
    return Carrier(load).run()
