"""Compare a submission with an earlier one: the start script, the request documents and the code."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from jobsubmit.agent.job_directory import SCRIPT_NAME
from jobsubmit.bundle.model import Bundle
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.config import Settings
from jobsubmit.errors import StoreError, UsageError
from jobsubmit.jobs.prepare import Prepared
from jobsubmit.jobs.records import JobRecord, JobRecords
from jobsubmit.jobs.rerun import code_of
from jobsubmit.stores.opening import open_store
from jobsubmit.transfer.manifest import Entry, read_manifest


@dataclass(frozen=True)
class Difference:
    """The documents that differ, as unified diffs, and the files that were added, removed or changed.

    `unknown` is the reason why the files could not be compared.
    """

    documents: Mapping[str, str]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing would change."""
        return not (self.documents or self.added or self.removed or self.changed or self.unknown)


def compare_with_job(record: JobRecord, prepared: Prepared, settings: Settings) -> Difference:
    """Compare a prepared job, as if it had the id of an earlier job, with that job; reads the earlier manifest.

    Raises UsageError if this machine has no copy of what was submitted.
    """
    directory = JobRecords(settings).directory(record.id)
    if not (directory / SCRIPT_NAME).exists():
        raise UsageError(
            f"--diff {record.id}: this machine has no copy of what was submitted",
            "name a job that was submitted from this machine",
        )
    new = {SCRIPT_NAME: prepared.script.text, **prepared.request.documents}
    diffs = {}
    for name, text in new.items():
        file = directory / name
        old = file.read_bytes().decode("utf-8", "replace") if file.exists() else ""
        if old != text:
            diffs[name] = _unified(old, text, f"{record.id}/{name}", f"now/{name}")
    if prepared.bundle is None:
        is_same = prepared.code.uri == record.code
        return Difference(diffs, unknown="" if is_same else f"the code was {record.code}, now {prepared.code.uri}")
    if prepared.bundle.digest == record.digest:
        return Difference(diffs)
    old_files = _files(record)
    if old_files is None:
        return Difference(diffs, unknown=f"the manifest of {record.id} is missing from the store, or cannot be read")
    return _with_files(diffs, old_files, prepared.bundle)


def _unified(old: str, new: str, old_name: str, new_name: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="")
    return "\n".join(lines) + "\n"


def _files(record: JobRecord) -> Mapping[str, Entry] | None:
    code = code_of(record)
    store = open_store(StoreAddress(**record.store))
    try:
        manifest = read_manifest(store.get(code.manifest_key), code.uri)
    except StoreError:
        return None
    return manifest.files if manifest else None


def _with_files(diffs: Mapping[str, str], old: Mapping[str, Entry], bundle: Bundle) -> Difference:
    new = {file.path: (file.mode, file.sha256) for file in bundle.files}
    changed = [path for path in new if path in old and new[path] != (old[path].mode, old[path].sha256)]
    return Difference(
        diffs,
        added=tuple(sorted(set(new) - set(old))),
        removed=tuple(sorted(set(old) - set(new))),
        changed=tuple(sorted(changed)),
    )
