"""Bundle + Script → store: send what is missing, verify it, and write the manifest last."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobsubmit.bundle.model import Bundle, BundleFile, require_unchanged
from jobsubmit.common.file_lock import hold_lock
from jobsubmit.errors import StoreRefusedError
from jobsubmit.stores.protocol import ObjectInfo, ObjectStore, Stored, Watch
from jobsubmit.transfer import copy_index, lease
from jobsubmit.transfer.code_ref import CodeRef, script_key
from jobsubmit.transfer.lease import HeldLease, read_lease
from jobsubmit.transfer.manifest import manifest_bytes, read_manifest
from jobsubmit.transfer.progress import Progress
from jobsubmit.transfer.worker_pool import run_all, threads_for

if TYPE_CHECKING:
    from jobsubmit.plan.script import Script

_FEWEST_THREADS = 16  # a server that writes to a disk waits, too
_ATTEMPTS = 20  # to be the first at a place that many want


class UploadSummary(NamedTuple):
    """What was sent, what was stored already, and what was removed."""

    files: int = 0
    size: int = 0
    skipped: int = 0
    copied: int = 0
    deleted: tuple[str, ...] = ()


class Changes(NamedTuple):
    """The changes that an upload would make to a store; `is_whole` means that there are none.

    `in_the_way` are keys that conflict with the new files (a file where they need a folder, or the reverse), `surplus`
    those that a mirror must not have.
    """

    is_whole: bool
    send: tuple[BundleFile, ...] = ()
    in_the_way: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    @property
    def delete(self) -> tuple[str, ...]:
        """Return all keys that are removed."""
        return tuple(sorted((*self.in_the_way, *self.surplus)))


def compare(
    store: ObjectStore,
    bundle: Bundle,
    code: CodeRef,
    *,
    recheck: bool = False,
    mirror: bool = False,
    force: bool = False,
) -> Changes:
    """Find what a store lacks of a bundle; changes nothing, and does not wait for other uploads.

    The stored manifest is trusted. With `recheck` the objects that it lists are checked too, by size and tag; if the
    key is `fixed` or the store near, they are always checked by size. With `mirror` all other objects below the code's
    key are to be removed. Raises StoreError if the manifest's key holds something else, unless `force` replaces it.
    """
    manifest = manifest_bytes(bundle, code.layout)
    found = _look(store, code, manifest)
    return _changes(store, bundle, code, manifest, found, recheck=recheck, mirror=mirror, force=force)


def upload(
    store: ObjectStore,
    bundle: Bundle,
    code: CodeRef,
    work_dir: Path,
    *,
    progress: Progress = Progress(),  # noqa: B008 - it holds nothing
    recheck: bool = False,
    mirror: bool = False,
    force: bool = False,
    is_doubted: Callable[[], bool] = lambda: False,
) -> UploadSummary:
    """Make the store hold the whole bundle; send nothing if it does already. Safe to run twice, and concurrently.

    If the bundle seems to be stored, `is_doubted` decides whether to send all of it again. With `force` the manifest
    replaces anything at its key.
    At a key that this machine has not used before, the lease is written first: if nothing is stored, an upload takes
    three round trips.
    Uploads to one key wait for each other: on this machine by a lock in `work_dir`, otherwise by a lease in the store.
    Raises StoreError, and BundleError if a file changes meanwhile.
    """
    store.check_key(code.manifest_key)
    manifest = manifest_bytes(bundle, code.layout)
    lock = work_dir / f"{hashlib.sha256(f'{store.uri}/{code.key}'.encode()).hexdigest()[:32]}.lock"
    waiting = partial(progress.say, f"another upload to {code.uri} is under way: waiting for it")
    is_unknown = not store.is_near and not lock.exists()  # then the claim shows whether anything lies there
    with hold_lock(lock, waiting) as owner:
        for attempt in range(_ATTEMPTS):
            is_first = is_unknown and attempt == 0
            found = None if is_first else _look(store, code, manifest)
            found = lease.wait_for_expiry(store, code, found, owner, progress)
            changes = _changes(store, bundle, code, manifest, found, recheck=recheck, mirror=mirror, force=force)
            if changes.is_whole:
                if not is_doubted():
                    return UploadSummary(skipped=len(bundle.files))
                progress.say(f"the last job could not fetch {code.uri}: uploading all files again")
                changes = Changes(is_whole=False, send=bundle.files)
            try:
                place = lease.acquire_lease(store, code, found, owner)
            except StoreRefusedError:
                if not is_first:
                    raise
                continue  # who may only read may find all of it there
            if place is not None:
                break
        else:
            raise lease.lease_lost_error(code)
        with place:
            if code.layout == "archive":
                summary = _send_archive(store, code, bundle, place, progress)
            else:
                earlier = copy_index.load(work_dir, store, code)
                summary = _send_tree(store, code, changes, place, progress, earlier)
            require_unchanged(bundle)
            _send_diff(store, code, bundle)
            place.end_with(manifest)
    if code.layout == "tree":
        copy_index.save(work_dir, store, code, bundle)
    return summary._replace(skipped=len(bundle.files) - len(changes.send), deleted=changes.delete)


def upload_script(store: ObjectStore, job_name: str, script: Script) -> None:
    """Upload the start script, unless it is stored already."""
    key = script_key(job_name, script)
    if store.head(key) is None:
        store.put(key, script.data, script.sha256)


# ── what is there ───────────────────────────────────────────────────────────────────────────────────────────────────


def _look(store: ObjectStore, code: CodeRef, manifest: bytes) -> Stored | None:
    found = store.get_unless(code.manifest_key, hashlib.md5(manifest, usedforsecurity=False).hexdigest())
    return Stored(manifest, found.tag) if found and found.data is None else found


def _changes(
    store: ObjectStore,
    bundle: Bundle,
    code: CodeRef,
    manifest: bytes,
    found: Stored | None,
    *,
    recheck: bool,
    mirror: bool,
    force: bool,
) -> Changes:
    listed = found is not None and found.data == manifest
    earlier = read_manifest(found.data, code.uri) if found and found.data and not listed else None
    if earlier and (earlier.digest, earlier.layout) == (bundle.digest, code.layout):
        listed = True  # the same code, in another revision
    if not listed and not earlier and not force:
        lease.require_ours(code, found)
    if code.layout == "archive":
        is_believed = listed and not recheck
        is_whole = is_believed and (not (code.fixed or store.is_near) or store.head(code.key) is not None)
        return Changes(is_whole, () if is_whole else bundle.files)
    if listed and not (recheck or mirror or code.fixed or store.is_near):
        return Changes(is_whole=True)
    interrupted = found is not None and read_lease(found.data) is not None
    looks = listed or interrupted or recheck
    objects = _objects(store, code) if looks or mirror else {}
    if looks:
        send = tuple(f for f in bundle.files if not _is_there(store, objects, f, tags=recheck or interrupted))
    elif earlier:
        known = earlier.files
        send = tuple(f for f in bundle.files if f.path not in known or known[f.path].sha256 != f.sha256)
    else:
        send = bundle.files
    for file in send:
        store.check_key(_key(code, file.path))
    # What no manifest of ours lists goes only from a mirror: it is somebody else's.
    there = {*(objects if mirror else ()), *(earlier.files if earlier else ())}
    extra = there - {file.path for file in bundle.files}
    blocking = _in_the_way(extra, bundle)
    keys = [tuple(sorted(_key(code, path) for path in paths)) for paths in (blocking, extra - blocking)]
    in_the_way, surplus = keys[0], keys[1] if mirror else ()
    return Changes(listed and not (send or in_the_way or surplus), send, in_the_way, surplus)


def _objects(store: ObjectStore, code: CodeRef) -> dict[str, ObjectInfo]:
    start = f"{code.key}/"
    return {info.key[len(start) :]: info for info in store.list(start)}


def _is_there(store: ObjectStore, objects: dict[str, ObjectInfo], file: BundleFile, *, tags: bool) -> bool:
    info: ObjectInfo | None = objects.get(file.path)
    if info is None or info.size != file.size:
        return False
    if not tags:
        return True
    info = info if info.tag else store.head(info.key)
    return info is not None and info.tag == store.tag_of(Path(file.source))


def _in_the_way(extra: Collection[str], bundle: Bundle) -> set[str]:
    if not extra:
        return set()
    files = {file.path for file in bundle.files}
    folders = {above for path in files for above in _folders_of(path)}
    return {path for path in extra if path in folders or any(above in files for above in _folders_of(path))}


def _folders_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def _key(code: CodeRef, path: str) -> str:
    return f"{code.key}/{path}"


# ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Watch(Watch):
    """Send only while the place is ours, and show how far it is."""

    def __init__(self, place: HeldLease, progress: Progress) -> None:
        self.place, self.progress = place, progress

    def before(self) -> None:
        """Wait for the claim to be certain (see Watch)."""
        self.place.require()

    def sent(self, size: int) -> None:
        """Move on (see Watch)."""
        self.progress.advance(size)


def _send_tree(
    store: ObjectStore,
    code: CodeRef,
    changes: Changes,
    place: HeldLease,
    progress: Progress,
    earlier: copy_index.Snapshot,
) -> UploadSummary:
    copied: list[int] = []
    watch = _Watch(place, progress)

    def remove(key: str) -> None:
        place.require()
        store.delete(key)

    def send(file: BundleFile) -> None:
        source = earlier.get(file.sha256)
        if source and store.copy(source, _key(code, file.path), Path(file.source)):
            copied.append(file.size)
            progress.advance(file.size, 1)
        else:
            store.put(_key(code, file.path), Path(file.source), file.sha256, watch=watch)
            progress.advance(0, 1)

    size = sum(file.size for file in changes.send)
    threads = threads_for(store.round_trip, _FEWEST_THREADS)
    progress.begin("uploading", size, len(changes.send))
    run_all(changes.in_the_way, remove, lambda _: 0, threads)
    run_all(changes.send, send, lambda file: file.size, threads)
    run_all(changes.surplus, remove, lambda _: 0, threads)
    return UploadSummary(len(changes.send), size - sum(copied), copied=len(copied))


def _send_diff(store: ObjectStore, code: CodeRef, bundle: Bundle) -> None:
    diff = bundle.revision.diff if bundle.revision else b""
    if diff:
        sha256 = hashlib.sha256(diff).hexdigest()
        store.put(code.diff_key(sha256), diff, sha256)


def _send_archive(
    store: ObjectStore, code: CodeRef, bundle: Bundle, place: HeldLease, progress: Progress
) -> UploadSummary:
    from jobsubmit.transfer.archive import largest, packed

    progress.begin("packing and uploading", bundle.size, len(bundle.files))
    watch = _ArchiveWatch(place, progress)
    store.put_stream(code.key, watch.passing(packed(bundle, progress)), largest(bundle), watch)
    return UploadSummary(len(bundle.files), watch.packed)


class _ArchiveWatch(Watch):
    """Send only while the place is ours; show how much is packed, and once all of it is, how much is sent."""

    def __init__(self, place: HeldLease, progress: Progress) -> None:
        self.place, self.progress = place, progress
        self.packed, self.gone, self.is_whole = 0, 0, False
        self.counting = threading.Lock()

    def before(self) -> None:
        """Wait for the claim to be certain (see Watch)."""
        self.place.require()

    def passing(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the same blocks."""
        for block in blocks:
            self.packed += len(block)
            yield block
        with self.counting:
            self.is_whole = True
            self.progress.begin("uploading", self.packed, 1)
            self.progress.advance(self.gone)

    def sent(self, size: int) -> None:
        """Move on (see Watch)."""
        with self.counting:
            self.gone += size
            if self.is_whole:
                self.progress.advance(size, int(self.gone == self.packed))
