"""Bundle + Script → store, and the order by which a node fetches both; a bundle counts once its manifest is there."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from jobsubmit.bundle import Bundle, BundleFile, hash_file
from jobsubmit.errors import BundleError, CheckError, StoreError
from jobsubmit.node.fetch import tree_digest
from jobsubmit.render import Script
from jobsubmit.spec.model import Layout
from jobsubmit.stores import ObjectStore, changed

_PARALLEL = 16
_MANIFEST = ".manifest.json"
_FETCH_WITHIN_SECONDS = 24 * 3600

Progress: TypeAlias = Callable[[int], object]
FetchOrder: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class CodeRef:
    """Say where the code of a job is: `key` lies below the store, `name` is its folder in MA_JOB_DIR."""

    uri: str
    key: str
    layout: Layout
    name: str
    digest: str | None


@dataclass(frozen=True)
class UploadSummary:
    """Count what was sent and what was there already (files, bytes)."""

    files: int = 0
    size: int = 0
    skipped: int = 0


def code_ref(store_uri: str, job_name: str, code_name: str, bundle: Bundle, layout: Layout) -> CodeRef:
    """Return where a bundle will be; touches nothing."""
    key = f"{job_name}/{bundle.digest}/{code_name}" + (".tar.gz" if layout == "archive" else "")
    return CodeRef(f"{store_uri}/{key}", key, layout, code_name, bundle.digest)


def tree_ref(uri: str, name: str, digest: str | None = None) -> CodeRef:
    """Return the reference to a tree at `uri`, its digest if known; the store to open is the folder above it."""
    return CodeRef(uri, name, "tree", name, digest)


def script_key(job_name: str, script: Script) -> str:
    """Return the key of a start script: its own digest, it is no part of the code's."""
    return f"{job_name}/scripts/{script.sha256}.sh"


def upload(store: ObjectStore, bundle: Bundle, code: CodeRef, progress: Progress = lambda _: None) -> UploadSummary:
    """Make the store hold the bundle, whole; send nothing where it does already. Safe to run twice and at once."""
    manifest_key = code.key + _MANIFEST
    vouched = _vouched_digest(store, manifest_key)
    if vouched == bundle.digest and _is_whole(store, bundle, code):
        return UploadSummary(skipped=len(bundle.files))
    if vouched is not None:
        # A manifest of other content must not vouch for a half-replaced tree.
        store.delete(manifest_key)
    if code.layout == "archive":
        summary = _upload_archive(store, bundle, code.key, progress)
    else:
        summary = _upload_tree(store, bundle, code.key, progress)
    manifest = _manifest(bundle, code.layout)
    store.put(manifest_key, manifest, hashlib.sha256(manifest).hexdigest())
    return summary


def upload_script(store: ObjectStore, job_name: str, script: Script) -> None:
    """Make the store hold the start script."""
    key = script_key(job_name, script)
    if store.head(key) is None:
        store.put(key, script.data, script.sha256)


def _manifest(bundle: Bundle, layout: Layout) -> bytes:
    document = {"digest": bundle.digest, "layout": layout, "files": [file.entry() for file in bundle.files]}
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()


def _vouched_digest(store: ObjectStore, manifest_key: str) -> str | None:
    """Return the digest of the tree that a manifest lists: None without a manifest, empty where it is none of ours."""
    if store.head(manifest_key) is None:
        return None
    try:
        return tree_digest(json.loads(store.get(manifest_key))["files"])
    except (ValueError, KeyError, TypeError):
        return ""


def _is_whole(store: ObjectStore, bundle: Bundle, code: CodeRef) -> bool:
    """Tell whether what a manifest vouches for is still there: somebody may have tidied up."""
    if code.layout == "archive":
        return store.head(code.key) is not None
    there = {info.key: info.size for info in store.list(f"{code.key}/")}
    return all(there.get(f"{code.key}/{file.path}") == file.size for file in bundle.files)


def _upload_tree(store: ObjectStore, bundle: Bundle, key: str, progress: Progress) -> UploadSummary:
    def send(file: BundleFile) -> None:
        store.put(f"{key}/{file.path}", file.source, file.sha256)
        progress(file.size)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        sent = [pool.submit(send, file) for file in bundle.files]
        try:
            for future in sent:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            wait(sent)
            raise
    return UploadSummary(len(bundle.files), bundle.size)


def _upload_archive(store: ObjectStore, bundle: Bundle, key: str, progress: Progress) -> UploadSummary:
    with tempfile.TemporaryDirectory(prefix="jobsubmit-") as folder:
        archive = Path(folder) / "code.tar.gz"
        _pack(bundle, archive, progress)
        sha256, size = hash_file(archive)
        store.put(key, archive, sha256)
    return UploadSummary(1, size)


def _pack(bundle: Bundle, archive: Path, progress: Progress) -> None:
    """Write the same bytes for the same tree: sorted, no owners, no times, gzip level 1."""
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in bundle.files:
            _add(tar, file)
            progress(file.size)


def _add(tar: tarfile.TarFile, file: BundleFile) -> None:
    member = tarfile.TarInfo(file.path)
    member.size = file.size
    member.mode = int(file.mode, 8)
    try:
        with file.source.open("rb") as stream:
            reader = _HashingReader(stream)
            tar.addfile(member, reader)  # type: ignore[arg-type] # it asks for `read` and nothing else
    except OSError as error:
        raise BundleError(f"{file.source} changed or vanished while it was read: {error}", "run again") from error
    if reader.digest.hexdigest() != file.sha256:
        raise changed(file.source)


class _HashingReader:
    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self.stream.read(size)
        self.digest.update(block)
        return block


def fetch_order(
    store: ObjectStore, code_store: ObjectStore, code: CodeRef, job_name: str, script: Script
) -> FetchOrder:
    """Return what a node needs to fetch code and script, as `node/fetch.py` reads it; its addresses are secrets.

    `code_store` is where the code lies: the job's store, or for uploaded code the folder above it.
    """
    order_code: dict[str, Any] = {"layout": code.layout}
    manifest = code_store.get(code.key + _MANIFEST) if code_store.head(code.key + _MANIFEST) else None
    if manifest is not None:
        files = json.loads(manifest)["files"]
        order_code["manifest"] = code_store.url(code.key + _MANIFEST, _FETCH_WITHIN_SECONDS)
        order_code["digest"] = code.digest or tree_digest(files)
        paths = [file["path"] for file in files]
    elif code.digest is not None:
        raise StoreError(f"{code.uri}: its manifest is gone", "submit again: the code will be uploaded again")
    else:
        order_code["sizes"] = _listed(code_store, code)
        paths = list(order_code["sizes"])
    if code.layout == "archive":
        order_code["archive"] = code_store.url(code.key, _FETCH_WITHIN_SECONDS)
    else:
        order_code["files"] = {path: code_store.url(f"{code.key}/{path}", _FETCH_WITHIN_SECONDS) for path in paths}
    return {
        "script": {"url": store.url(script_key(job_name, script), _FETCH_WITHIN_SECONDS), "sha256": script.sha256},
        "code": order_code,
        "code_name": code.name,
    }


def _listed(store: ObjectStore, code: CodeRef) -> dict[str, int]:
    start = code.key + "/"
    sizes = {info.key[len(start) :]: info.size for info in store.list(start) if not info.key.endswith("/")}
    if not sizes:
        raise StoreError(f"{code.uri}: there is no code", "correct code_dir, or upload it: jobsubmit upload DIR URI")
    return sizes


def require_boot_file(order: FetchOrder, boot_file: str | None, code: CodeRef) -> None:
    """Raise CheckError unless the boot file is among the files a node will fetch."""
    files = order["code"].get("files")
    if boot_file is not None and files is not None and boot_file not in files:
        raise CheckError(f"boot_file: {boot_file} is not in {code.uri}", "correct boot_file, or upload the code again")
