"""Bundle + Script → store: send what is not there, prove it, and say so last."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jobsubmit.bundle import Bundle, BundleFile, read_blocks, require_unchanged
from jobsubmit.errors import BundleError, StoreError
from jobsubmit.locks import held
from jobsubmit.stores import ObjectInfo, ObjectStore, Stored
from jobsubmit.transfer import snapshots
from jobsubmit.transfer.manifest import Claim, claim_bytes, manifest_bytes, read_claim, read_manifest
from jobsubmit.transfer.reference import CodeRef, script_key
from jobsubmit.transfer.workers import run_all, threads_for

if TYPE_CHECKING:
    from jobsubmit.render import Script

# What the progress is told: bytes sent, files done.
Progress: TypeAlias = Callable[[int, int], object]


def silent(_bytes: int, _files: int) -> None:
    """Show no progress."""


class UploadSummary(NamedTuple):
    """Count what was sent, what was there already, and what was removed."""

    files: int = 0
    size: int = 0
    skipped: int = 0
    copied: int = 0
    deleted: int = 0


class Changes(NamedTuple):
    """Say what would have to be done to a store; `found` is what lies in the manifest's place now."""

    manifest: bytes
    send: tuple[BundleFile, ...]
    delete: tuple[str, ...]
    found: Stored | None
    is_whole: bool
    threads: int


def compare(
    store: ObjectStore, bundle: Bundle, code: CodeRef, *, recheck: bool = False, mirror: bool = False
) -> Changes:
    """Find what a store lacks of a bundle; changes nothing.

    The manifest that lies there is believed; with `recheck` the objects it lists are looked for, too. With `mirror`
    whatever else lies below the code's key shall go.
    """
    store.check_key(code.manifest_key)
    started = time.monotonic()
    manifest = manifest_bytes(bundle, code.layout)
    found = store.get_unless(code.manifest_key, hashlib.md5(manifest, usedforsecurity=False).hexdigest())
    threads = threads_for(time.monotonic() - started)
    is_whole = found is not None and found.data is None
    lacking = () if is_whole else _lacking(store, bundle, code, found)
    if recheck and is_whole:
        lacking = _gone(store, bundle, code)
    if code.layout == "tree":
        for file in lacking:
            store.check_key(_key(code, file))
    extra = _extra(store, bundle, code) if mirror and code.layout == "tree" else ()
    return Changes(manifest, lacking, extra, found, is_whole and not lacking and not extra, threads)


def upload(
    store: ObjectStore,
    bundle: Bundle,
    code: CodeRef,
    work_dir: Path,
    *,
    progress: Progress = silent,
    recheck: bool = False,
    mirror: bool = False,
) -> UploadSummary:
    """Make the store hold the bundle, whole; send nothing where it does already. Safe to run twice and at once.

    Uploads from this machine to one place wait for each other, by a lock in `work_dir`. Raises StoreError where another
    machine is at it, BundleError where a file changed meanwhile.
    """
    address = f"{store.uri}/{code.key}"
    with held(work_dir / f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.lock"):
        changes = compare(store, bundle, code, recheck=recheck, mirror=mirror)
        if changes.is_whole:
            return UploadSummary(skipped=len(bundle.files))
        if code.layout == "archive":
            summary = _upload_archive(store, bundle, code, changes, progress)
        else:
            summary = _upload_tree(store, bundle, code, changes, progress, work_dir)
    return summary._replace(skipped=len(bundle.files) - len(changes.send), deleted=len(changes.delete))


def upload_script(store: ObjectStore, job_name: str, script: Script) -> None:
    """Make the store hold the start script."""
    key = script_key(job_name, script)
    if store.head(key) is None:
        store.put(key, script.data, script.sha256)


def _key(code: CodeRef, file: BundleFile) -> str:
    return f"{code.key}/{file.path}"


# ── what is there ───────────────────────────────────────────────────────────────────────────────────────────────────


def _lacking(store: ObjectStore, bundle: Bundle, code: CodeRef, found: Stored | None) -> tuple[BundleFile, ...]:
    """Return the files that differ from what a manifest lists, or from what an interrupted upload left."""
    if code.layout == "archive" or found is None or found.data is None:
        return bundle.files
    manifest = read_manifest(found.data)
    if manifest is not None and manifest.layout == "tree":
        there = manifest.files
        return tuple(f for f in bundle.files if f.path not in there or there[f.path].sha256 != f.sha256)
    if read_claim(found.data) is None:
        return bundle.files
    objects = _objects(store, code)
    return tuple(f for f in bundle.files if not _is_same(objects.get(_key(code, f)), f))


def _is_same(info: ObjectInfo | None, file: BundleFile) -> bool:
    if info is None or info.size != file.size:
        return False
    md5 = hashlib.md5(usedforsecurity=False)
    try:
        for block in read_blocks(file.source):
            md5.update(block)
    except OSError:
        return False  # sending it will say what is wrong
    return md5.hexdigest() == info.tag


def _gone(store: ObjectStore, bundle: Bundle, code: CodeRef) -> tuple[BundleFile, ...]:
    """Return the files that are not there although the manifest lists them: somebody may have tidied up."""
    if code.layout == "archive":
        return () if store.head(code.key) else bundle.files
    objects = _objects(store, code)
    sizes = {key: info.size for key, info in objects.items()}
    return tuple(file for file in bundle.files if sizes.get(_key(code, file)) != file.size)


def _extra(store: ObjectStore, bundle: Bundle, code: CodeRef) -> tuple[str, ...]:
    return tuple(sorted(set(_objects(store, code)) - {_key(code, file) for file in bundle.files}))


def _objects(store: ObjectStore, code: CodeRef) -> dict[str, ObjectInfo]:
    return {info.key: info for info in store.list(f"{code.key}/")}


# ── who may write ───────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _replacing(store: ObjectStore, bundle: Bundle, code: CodeRef, changes: Changes) -> Iterator[None]:
    """Hold the manifest's place with a claim, for no manifest may vouch for a half-replaced tree; put it there last.

    A key with the digest in it needs no claim while it is empty: whoever writes there writes the same.
    """
    claim = None if code.fixed and changes.found is None else _claim(store, code, changes.found)
    yield
    require_unchanged(bundle)
    digest = hashlib.sha256(changes.manifest).hexdigest()
    if store.put(code.manifest_key, changes.manifest, digest, expected=claim) is None:
        raise StoreError(f"{code.uri}: another upload has overtaken this one", "run again if yours shall be there")


def _claim(store: ObjectStore, code: CodeRef, found: Stored | None) -> str:
    other = read_claim(found.data) if found and found.data else None
    if other is not None and other.is_alive:
        raise _busy(code, other)
    claim = claim_bytes()
    tag = store.put(code.manifest_key, claim, hashlib.sha256(claim).hexdigest(), expected=found.tag if found else "")
    if tag is None:
        raise _busy(code, None)
    return tag


def _busy(code: CodeRef, other: Claim | None) -> StoreError:
    who = f"process {other.pid} on {other.host}" if other else "somebody else"
    hint = f"wait for it; if it is dead, remove {code.uri}{code.manifest_key[len(code.key) :]}"
    return StoreError(f"{code.uri}: {who} is uploading to this place", hint)


# ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _upload_tree(
    store: ObjectStore, bundle: Bundle, code: CodeRef, changes: Changes, progress: Progress, work_dir: Path
) -> UploadSummary:
    earlier = snapshots.load(work_dir, store.uri, code)
    copied: list[BundleFile] = []

    def send(file: BundleFile) -> None:
        source = earlier.get(file.sha256)
        if source and store.copy(source, _key(code, file), Path(file.source)):
            copied.append(file)
            progress(file.size, 1)
        else:
            store.put(_key(code, file), Path(file.source), file.sha256, progress=lambda size: progress(size, 0))
            progress(0, 1)

    with _replacing(store, bundle, code, changes):
        run_all(changes.send, send, lambda file: file.size, changes.threads)
        run_all(changes.delete, store.delete, lambda _: 0, changes.threads)
    snapshots.save(work_dir, store.uri, code, bundle)
    by_copy = sum(file.size for file in copied)
    return UploadSummary(len(changes.send), sum(file.size for file in changes.send) - by_copy, copied=len(copied))


def _upload_archive(
    store: ObjectStore, bundle: Bundle, code: CodeRef, changes: Changes, progress: Progress
) -> UploadSummary:
    import tempfile

    from jobsubmit.transfer.archive import pack

    try:
        folder = tempfile.TemporaryDirectory(prefix="jobsubmit-")
    except OSError as error:
        raise BundleError(f"there is no room for the archive: {error}", "name a folder with TMPDIR") from error
    with folder:
        archive = Path(folder.name) / "code.tar.gz"
        sha256, size = pack(bundle, archive, lambda packed: progress(packed, 0))
        with _replacing(store, bundle, code, changes):
            store.put(code.key, archive, sha256, expected="" if code.fixed else None)
    progress(0, len(bundle.files))
    return UploadSummary(len(bundle.files), size)
