"""The list of a bundle's files, written last: where it is, all of them are. And the claim that holds its place."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsubmit.node.fetch import tree_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobsubmit.bundle import Bundle
    from jobsubmit.spec.model import Layout

NOT_WHOLE_HINT = "it is being uploaded, or that was interrupted: upload it again"

_FORMAT = 1
# A claim of another machine counts this long: who made it has either ended by then, or notices at its own end.
_CLAIM_SECONDS = 15 * 60


class Entry(NamedTuple):
    """Describe a file of a manifest."""

    mode: str
    size: int
    sha256: str


class Manifest(NamedTuple):
    """List what a tree or an archive holds."""

    digest: str
    layout: Layout
    files: Mapping[str, Entry]
    directories: tuple[str, ...]


def manifest_bytes(bundle: Bundle, layout: Layout) -> bytes:
    """Return the manifest of a bundle, the same bytes for the same tree."""
    quoted = json.JSONEncoder(ensure_ascii=False).encode  # of text, several times as fast as of a mapping
    head = {"format": _FORMAT, "digest": bundle.digest, "layout": layout, "directories": bundle.directories}
    files = ",\n".join(
        f'{{"path":{quoted(file.path)},"mode":"{file.mode}","size":{file.size},"sha256":"{file.sha256}"}}'
        for file in bundle.files
    )
    return f'{quoted(head)[:-1]}, "files": [\n{files}\n]}}\n'.encode()


def read_manifest(data: bytes) -> Manifest | None:
    """Return a manifest, or None where this is a claim, damaged, or something else."""
    try:
        document = json.loads(data)
        files = {f["path"]: Entry(f["mode"], f["size"], f["sha256"]) for f in document["files"]}
        directories = tuple(document["directories"])
        digest = tree_digest(((path, entry.mode, entry.sha256) for path, entry in files.items()), directories)
        if document["format"] != _FORMAT or digest != document["digest"]:
            return None
        return Manifest(digest, document["layout"], files, directories)
    except (ValueError, KeyError, TypeError):
        return None


class Claim(NamedTuple):
    """Say who is replacing what lies beside it, since when (seconds since the epoch)."""

    host: str
    pid: int
    since: float

    @property
    def is_alive(self) -> bool:
        """Tell whether its maker may still be at work."""
        if self.host != os.uname().nodename:
            return time.time() - self.since < _CLAIM_SECONDS
        if self.pid == os.getpid():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def claim_bytes() -> bytes:
    """Return a claim of this process, in the shape of a manifest that lists nothing."""
    claim = Claim(os.uname().nodename, os.getpid(), time.time())
    return json.dumps({"format": _FORMAT, "claim": claim._asdict(), "files": []}).encode() + b"\n"


def read_claim(data: bytes) -> Claim | None:
    """Return the claim in a manifest's place, if there is one."""
    try:
        document: Any = json.loads(data)
        return Claim(**document["claim"])
    except (ValueError, KeyError, TypeError):
        return None
