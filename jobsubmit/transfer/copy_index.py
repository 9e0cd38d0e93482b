"""Where the large files of a job's last tree are, so that the server can copy those that did not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from jobsubmit.agent.atomic_write import replace_file
from jobsubmit.bundle.model import Bundle
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.transfer.code_ref import CodeRef

Snapshot: TypeAlias = Mapping[str, str]
"""Digest → key of a large file."""

_LARGE = 1 << 20


def load(folder: Path, store: ObjectStore, code: CodeRef) -> Snapshot:
    """Return the large files of the last tree; nothing if there was none, or if the key is not `fixed`."""
    if not code.fixed:
        return {}
    try:
        document = json.loads(_file(folder, store, code).read_bytes())
        return {str(sha256): str(key) for sha256, key in document.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def save(folder: Path, store: ObjectStore, code: CodeRef, bundle: Bundle) -> None:
    """Store where the large files of an uploaded tree are; those that are not in the index are sent again."""
    large = {file.sha256: f"{code.key}/{file.path}" for file in bundle.files if file.size > _LARGE}
    if not code.fixed or not large:
        return
    with suppress(OSError):
        replace_file(str(_file(folder, store, code)), json.dumps(large))


def _file(folder: Path, store: ObjectStore, code: CodeRef) -> Path:
    job = code.key.partition("/")[0]
    return folder / f"{hashlib.sha256(f'{store.uri}/{job}'.encode()).hexdigest()[:32]}.large"
