"""The list of a bundle's files. It is written last: if it exists, so do all files."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from jobsubmit.agent.fetch import DEEPEST, FetchError, index_entries, tree_digest
from jobsubmit.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobsubmit.agent.protocol import ManifestEntry
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.stores.protocol import ObjectStore
    from jobsubmit.transfer.code_ref import CodeRef

NOT_WHOLE_HINT = "if an upload is running, wait for it; otherwise run the upload again"

_FORMAT = 1
_SHA256 = re.compile("[0-9a-f]{64}")


class Entry(NamedTuple):
    """A file of a manifest."""

    mode: str
    size: int
    sha256: str

    def listed(self, path: str) -> ManifestEntry:
        """Return the entry as the manifest lists it."""
        return {"path": path, "mode": self.mode, "sha256": self.sha256, "size": self.size}


class Manifest(NamedTuple):
    """The files of a tree or an archive."""

    digest: str
    layout: Layout
    files: Mapping[str, Entry]
    directories: tuple[str, ...]


def manifest_bytes(bundle: Bundle, layout: Layout) -> bytes:
    """Return the manifest of a bundle, the same bytes for the same tree in the same revision."""
    quoted = json.JSONEncoder(ensure_ascii=False).encode  # of text, several times as fast as of a mapping
    head = {"format": _FORMAT, "digest": bundle.digest, "layout": layout, "directories": bundle.directories}
    git = {"git": bundle.revision.document()} if bundle.revision else {}
    files = ",\n".join(
        f'{{"path":{quoted(file.path)},"mode":"{file.mode}","size":{file.size},"sha256":"{file.sha256}"}}'
        for file in bundle.files
    )
    return f'{quoted({**head, **git})[:-1]}, "files": [\n{files}\n]}}\n'.encode()


def _entry(path: str, mode: str, size: int, sha256: str) -> Entry:
    is_path = type(path) is str and "\0" not in path and path.count("/") < DEEPEST
    if not is_path or mode not in ("644", "755") or not _SHA256.fullmatch(sha256):
        raise ValueError(path)
    return Entry(mode, size, sha256)


def read_manifest(data: bytes, uri: str) -> Manifest | None:
    """Return the manifest of the code at an address, or None if it is a lease, damaged, or something else.

    Raises StoreError for one that a newer version of jobsubmit has written: it must not be overwritten.
    """
    try:
        document = json.loads(data)
        if isinstance(document["format"], int) and document["format"] > _FORMAT:
            text = f"{uri}: its manifest was written by a newer version of jobsubmit (format {document['format']})"
            raise StoreError(text, "upgrade jobsubmit, or choose another address", where=uri)
        files = {path: _entry(**entry) for path, entry in index_entries(document["files"]).items()}
        directories = tuple(document["directories"])
        if any(type(path) is not str or path.count("/") >= DEEPEST for path in directories):
            return None
        digest = tree_digest(((path, entry.mode, entry.sha256) for path, entry in files.items()), directories)
        if document["format"] != _FORMAT or digest != document["digest"]:
            return None
        return Manifest(digest, document["layout"], files, directories)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FetchError):
        return None


def stored_manifest(store: ObjectStore, code: CodeRef) -> Manifest | None:
    """Return the manifest of code, if there is one; raise StoreError if the upload is incomplete."""
    found = store.get_unless(code.manifest_key, "")
    if found is None or found.data is None:
        return None
    manifest = read_manifest(found.data, code.uri)
    if manifest is None:
        raise StoreError(f"{code.uri}: the upload is incomplete", NOT_WHOLE_HINT)
    return manifest
