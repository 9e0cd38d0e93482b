"""What a node needs to fetch its code and start script, as `agent/fetch.py` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobsubmit.agent.protocol import FetchCode, FetchOrder
from jobsubmit.errors import CheckError, StoreError
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.transfer.code_ref import CodeRef, script_key
from jobsubmit.transfer.manifest import stored_manifest

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.plan.script import Script

VALID_SECONDS = 7 * 24 * 3600  # of a signed address; S3 allows no more


def fetch_order(
    store: ObjectStore, code_store: ObjectStore, code: CodeRef, job_name: str, script: Script, bundle: Bundle | None
) -> FetchOrder:
    """Return the fetch order; its addresses are secrets.

    `code_store` is where the code is: the job's store, or for uploaded code the folder above it. `bundle` is what was
    uploaded just now; None if the code was uploaded earlier, and is looked up in the store.
    """
    paths = [file.path for file in bundle.files] if bundle else []
    order: FetchOrder = {
        "script": {"url": store.url(script_key(job_name, script), VALID_SECONDS), "sha256": script.sha256},
        "code": _proven(code_store, code, bundle.digest, paths) if bundle else _found(code_store, code),
        "code_name": code.name,
    }
    certificates = code_store.certificates or store.certificates
    return {**order, "certificates": certificates} if certificates else order


def _found(store: ObjectStore, code: CodeRef) -> FetchCode:
    manifest = stored_manifest(store, code)
    if manifest is None and code.digest is not None:
        raise StoreError(f"{code.uri}: its manifest is missing", "submit the job file, which uploads the code again")
    if manifest is None:
        sizes = _listed(store, code)
        return {"layout": code.layout, "sizes": sizes, "files": _addresses(store, code, list(sizes))}
    if code.digest not in (None, manifest.digest):
        raise StoreError(f"{code.uri} is no longer the code that was submitted", "submit your code directory again")
    return _proven(store, code, manifest.digest, list(manifest.files))


def _proven(store: ObjectStore, code: CodeRef, digest: str, paths: list[str]) -> FetchCode:
    order: FetchCode = {
        "layout": code.layout,
        "manifest": store.url(code.manifest_key, VALID_SECONDS),
        "digest": digest,
    }
    if code.layout == "archive":
        return {**order, "archive": store.url(code.key, VALID_SECONDS)}
    return {**order, "files": _addresses(store, code, paths)}


def _addresses(store: ObjectStore, code: CodeRef, paths: list[str]) -> dict[str, str]:
    return {path: store.url(f"{code.key}/{path}", VALID_SECONDS) for path in paths}


def _listed(store: ObjectStore, code: CodeRef) -> dict[str, int]:
    start = code.key + "/"
    sizes = {info.key[len(start) :]: info.size for info in store.list(start) if not info.key.endswith("/")}
    if not sizes:
        raise StoreError(f"{code.uri}: no code found", "correct code_dir, or upload it: jobsubmit upload DIR URI")
    return sizes


def require_boot_file(order: FetchOrder, boot_file: str | None, code: CodeRef) -> None:
    """Raise CheckError unless the boot file is among the files a node will fetch."""
    files = order["code"].get("files")
    if boot_file is not None and files is not None and boot_file not in files:
        raise CheckError(f"boot_file: {boot_file} is not in {code.uri}", "correct boot_file, or upload the code again")
