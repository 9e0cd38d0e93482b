"""What an earlier scan found, so that files which did not change since need not be read again (as git's index does)."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from jobsubmit.agent.atomic_write import make_private, replace_file
from jobsubmit.bundle.model import Bundle, Known

_FORMAT = "jobsubmit-stat-cache-2"
# A file that changed this short before the scan may change again without a new time stamp: it is always read.
_RACY_NS = 2_000_000_000
_DIGEST = re.compile(r"\S+")


def load_known(folder: Path, root: Path) -> Known:
    """Return the stamps and digests of an earlier scan; nothing if they are damaged or of another directory."""
    fields = _body(folder, root, "stat").split("\0")
    paths = fields[0:-1:3]
    return dict(zip(paths, zip(paths, fields[1::3], fields[2::3], strict=True), strict=True))


def save_known(folder: Path, bundle: Bundle, known: int) -> None:
    """Store a scan, unless it found exactly the files that were `known`. If it cannot be written, do nothing."""
    if bundle.read == 0 and len(bundle.files) == known:
        return
    digest = hashlib.sha256()
    for entry in _entries(bundle):
        digest.update(entry)
    header = _header(bundle.root, digest.hexdigest())
    _replace(_file(folder, bundle.root, "stat"), header, _entries(bundle))


def load_clean(folder: Path, bundle: Bundle, rules: str) -> frozenset[str]:
    """Return the digests of a bundle's files in which these rules found nothing, as far as that is known."""
    own = {file.sha256: file.sha256 for file in bundle.files}
    found = (match[0] for match in _DIGEST.finditer(_body(folder, bundle.root, "clean", rules)))
    return frozenset(own[sha256] for sha256 in found if sha256 in own)  # the bundle's texts, held once


def save_clean(folder: Path, bundle: Bundle, rules: str, clean: frozenset[str]) -> None:
    """Store in which files these rules found nothing. If that cannot be written, do nothing."""
    root = bundle.root
    if clean != load_clean(folder, bundle, rules):
        body = "\n".join(sorted(clean)).encode()
        _replace(_file(folder, root, "clean"), _header(root, hashlib.sha256(body).hexdigest(), rules), [body])


def _body(folder: Path, root: Path, kind: str, rules: str = "") -> str:
    """Return what is remembered, or nothing where it is damaged or of something else."""
    try:
        with open(_file(folder, root, kind), "rb") as stream:
            header, body = json.loads(stream.readline()), stream.read()
        return body.decode() if header == _header(root, hashlib.sha256(body).hexdigest(), rules) else ""
    except (OSError, ValueError, RecursionError):
        return ""


def _replace(file: Path, header: dict[str, str], body: Iterable[bytes]) -> None:
    with suppress(OSError):
        make_private(str(file.parent))
        replace_file(str(file), itertools.chain([json.dumps(header).encode() + b"\n"], body), is_durable=False)


def _entries(bundle: Bundle) -> Iterator[bytes]:
    """Yield path, stamp and digest of each file that can be believed, one by one: together they are large."""
    for file in bundle.files:
        if _newest(file.stamp) < bundle.scanned - _RACY_NS:
            yield f"{file.path}\0{file.stamp}\0{file.sha256}\0".encode()


def _newest(stamp: str) -> int:
    _, modified, changed, *_ = stamp.split()
    return max(int(modified), int(changed))


def _file(folder: Path, root: Path, kind: str) -> Path:
    name = hashlib.sha256(os.path.realpath(root).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return folder / f"{name}.{kind}"


def _header(root: Path, sha256: str, rules: str = "") -> dict[str, str]:
    return {"format": _FORMAT, "root": os.path.realpath(root), "sha256": sha256, **({"rules": rules} if rules else {})}
