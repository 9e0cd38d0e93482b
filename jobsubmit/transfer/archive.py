"""Bundle → one compressed object: the same bytes for the same tree, compressed while they are sent."""

from __future__ import annotations

import hashlib
import struct
import tarfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

from isal import isal_zlib

from jobsubmit.bundle.model import Bundle, BundleFile
from jobsubmit.common.file_reading import BLOCK, changed_error, vanished_error
from jobsubmit.transfer.progress import Progress

_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # gzip, without name and time (RFC 1952)
_END = b"\x03\0"  # an empty last block
_LONGEST_STORED = 0xFFFF
_SMALL, _SAMPLES, _SAMPLE, _WORTH = 64 << 10, 8, 2048, 0.95
_RECORD = 20 * tarfile.BLOCKSIZE
_LARGEST_USTAR = 8 << 30
_LARGEST_HEADER = 8 << 10
_SIZE, _CHECKSUM = slice(124, 136), slice(148, 156)  # where a ustar header has them


def packed(bundle: Bundle, progress: Progress) -> Iterator[bytes]:
    """Yield a tar.gz (level 1, sorted, no owners, no times). Raises BundleError if a file has changed."""
    unpacked = crc = 0
    ahead: Future[bytes] | None = None
    yield _HEAD
    with ThreadPoolExecutor(1) as beside:
        for block in _batches(_tar(bundle, progress)):
            unpacked += len(block)
            crc = isal_zlib.crc32(block, crc)
            before, ahead = ahead, beside.submit(_compressed, block)  # while the next files are read
            if before:
                yield before.result()
        if ahead:
            yield ahead.result()
    yield _END + struct.pack("<II", crc, unpacked & 0xFFFFFFFF)


def largest(bundle: Bundle) -> int:
    """Return the largest size that the archive can have, in bytes."""
    unpacked = bundle.size + _LARGEST_HEADER * (len(bundle.files) + len(bundle.directories)) + 2 * _RECORD
    return unpacked + unpacked // 1000


def _compressed(block: bytes) -> bytes:
    return _deflated(block) if _shrinks(block) else _stored(block)


def _shrinks(block: bytes) -> bool:
    """Return whether it is worth to compress a block, by the beginnings of its parts."""
    if len(block) < _SMALL:
        return True
    starts = range(0, len(block), len(block) // _SAMPLES)
    sample = b"".join(block[start : start + _SAMPLE] for start in starts)
    return len(isal_zlib.compress(sample, 1)) < _WORTH * len(sample)


def _deflated(block: bytes) -> bytes:
    packer = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -isal_zlib.MAX_WBITS)
    return packer.compress(block) + packer.flush(isal_zlib.Z_SYNC_FLUSH)


def _stored(block: bytes) -> bytes:
    """Return a block in stored blocks, as RFC 1951 (3.2.4) defines them."""
    parts: list[bytes] = []
    for start in range(0, len(block), _LONGEST_STORED):
        part = block[start : start + _LONGEST_STORED]
        parts += [struct.pack("<BHH", 0, len(part), len(part) ^ 0xFFFF), part]
    return b"".join(parts)


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
        progress.advance(file.size, 1)
    end = written + 2 * tarfile.BLOCKSIZE
    yield bytes(2 * tarfile.BLOCKSIZE + -end % _RECORD)


def _header(path: str, mode: str, size: int, kind: bytes) -> bytes:
    if path.isascii() and len(path) < tarfile.LENGTH_NAME and size < _LARGEST_USTAR and kind == tarfile.REGTYPE:
        return _short_header(path.encode(), size, _blank(mode))
    member = tarfile.TarInfo(path)
    member.mode, member.size, member.type = int(mode, 8), size, kind
    return member.tobuf(tarfile.PAX_FORMAT)


@cache
def _blank(mode: str) -> tuple[bytes, int]:
    """Return the header of an empty file without a name, and the sum of its bytes, as its checksum is defined."""
    member = tarfile.TarInfo("")
    member.mode = int(mode, 8)
    header = member.tobuf(tarfile.USTAR_FORMAT)
    return header, int(header[_CHECKSUM].rstrip(b"\0 "), 8) - sum(header[_SIZE])


def _short_header(name: bytes, size: int, blank: tuple[bytes, int]) -> bytes:
    """Return what tarfile makes of a short name, in a tenth of its time."""
    header, total = blank
    size_field = b"%011o\0" % size
    checksum = b"%06o\0 " % (total + sum(name) + sum(size_field))
    return (
        name
        + header[len(name) : _SIZE.start]
        + size_field
        + header[_SIZE.stop : _CHECKSUM.start]
        + checksum
        + header[_CHECKSUM.stop :]
    )


def _content(file: BundleFile) -> Iterator[bytes]:
    """Yield exactly the bytes that were scanned; raise BundleError if the file holds others by now."""
    digest, left = hashlib.sha256(), file.size
    try:
        with open(file.source, "rb", buffering=0) as stream:
            while left and (block := stream.read(min(left, BLOCK))):
                digest.update(block)
                left -= len(block)
                yield block
    except OSError as error:
        raise vanished_error(file.source, error) from error
    if digest.hexdigest() != file.sha256:
        raise changed_error(file.source)


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
