"""A cache of the data that jobs read on this machine: one copy of each content."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from jobsubmit.common.file_lock import hold_lock
from jobsubmit.errors import StoreError
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.transfer.code_ref import CodeRef, place_ref
from jobsubmit.transfer.download import download
from jobsubmit.transfer.manifest import read_manifest
from jobsubmit.transfer.progress import Progress

_COMPLETE = ".complete"


def fetch_cached(store: ObjectStore, place: CodeRef, cache: Path) -> Path:
    """Return a directory with what an address holds now; cached data never changes. Raises StoreError."""
    digest = _digest(store, place)
    directory, complete = cache / digest, cache / f"{digest}{_COMPLETE}"
    with hold_lock(cache / f"{digest}.lock", waiting=lambda: None):
        if not complete.exists():
            if download(store, place, directory, Progress()).digest not in (None, digest):
                raise StoreError(f"{place.uri} changed while it was downloaded", "submit again")
            complete.touch()
    os.utime(complete)
    return directory


def _digest(store: ObjectStore, place: CodeRef) -> str:
    """Return the digest of a tree that has a manifest, else of the list of its objects, their sizes and tags."""
    for form in (place, place_ref(place.uri, place.name, "archive")):
        there = store.get_unless(form.manifest_key, "")
        manifest = read_manifest(there.data, form.uri) if there and there.data is not None else None
        if manifest is not None:
            return manifest.digest
    listed = sorted((info.key, info.size, info.tag) for info in store.list(place.key + "/"))
    return hashlib.sha256(json.dumps([place.uri, listed]).encode()).hexdigest()
