"""Bundle → one compressed object: the same bytes for the same tree, in a file and never in memory."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path

from isal import isal_zlib

from jobsubmit.bundle import BLOCK, Bundle, BundleFile, changed
from jobsubmit.errors import BundleError
from jobsubmit.stores import Progress

_GZIP = 16 + isal_zlib.MAX_WBITS
_RECORD = 20 * tarfile.BLOCKSIZE


def pack(bundle: Bundle, archive: Path, progress: Progress) -> tuple[str, int]:
    """Write a tar.gz (level 1, sorted, no owners, no times); return its (sha256, size). Raises BundleError."""
    packer, digest, size = isal_zlib.compressobj(1, isal_zlib.DEFLATED, _GZIP), hashlib.sha256(), 0
    try:
        with archive.open("wb", buffering=0) as sink:
            for block in _batches(_tar(bundle, progress)):
                packed = packer.compress(block)
                digest.update(packed)
                size += sink.write(packed)
            packed = packer.flush()
            digest.update(packed)
            size += sink.write(packed)
    except OSError as error:
        hint = "make room there, or name another folder with TMPDIR"
        raise BundleError(f"the archive cannot be written to {archive}: {error.strerror}", hint) from error
    return digest.hexdigest(), size


def _tar(bundle: Bundle, progress: Progress) -> Iterator[bytes]:
    written = 0
    for directory in bundle.directories:
        header = _header(directory, "755", 0, tarfile.DIRTYPE)
        written += len(header)
        yield header
    for file in bundle.files:
        header = _header(file.path, file.mode, file.size, tarfile.REGTYPE)
        yield header
        yield from _content(file)
        filling = -file.size % tarfile.BLOCKSIZE
        yield bytes(filling)
        written += len(header) + file.size + filling
        progress(file.size)
    end = written + 2 * tarfile.BLOCKSIZE
    yield bytes(2 * tarfile.BLOCKSIZE + -end % _RECORD)


def _header(path: str, mode: str, size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo(path)
    member.mode, member.size, member.type = int(mode, 8), size, kind
    return member.tobuf(tarfile.PAX_FORMAT)


def _content(file: BundleFile) -> Iterator[bytes]:
    """Yield exactly the bytes that were scanned; raise BundleError if the file holds others by now."""
    digest, size = hashlib.sha256(), 0
    try:
        with open(file.source, "rb", buffering=0) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
                size += len(block)
                if size > file.size:
                    break
                yield block
    except OSError as error:
        raise BundleError(f"{file.source} changed or vanished while it was read: {error}", "run again") from error
    if digest.hexdigest() != file.sha256:
        raise changed(file.source)


def _batches(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in larger pieces."""
    waiting: list[bytes] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += len(block)
        if size >= BLOCK:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join(waiting)
