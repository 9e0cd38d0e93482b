"""Read the scalars in TensorBoard event files: the records of a TFRecord file, each a protobuf Event.

The form is that of tensorflow/core/util/event.proto and summary.proto; only what holds a scalar is read. A file may be
written to at this moment: what follows the last whole record is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from jobsubmit.metrics.words import plain_name

_LONGEST_RECORD = 1 << 20  # bytes: a scalar needs a hundred; images and histograms are skipped
_LONGEST_NAME = 100
_HEAD, _CHECKSUM = struct.Struct("<QI"), 4
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types
_FLOAT32, _FLOAT64 = 1, 2  # of a tensor
_MASK = 0xA282EAD8


class Scalar(NamedTuple):
    """A scalar of an event file; `time` is in seconds since the epoch."""

    name: str
    time: float
    step: int
    value: float


def read_scalars(stream: BinaryIO) -> Iterator[Scalar]:
    """Yield the scalars of an event file, as far as it is whole."""
    for record in _records(stream):
        try:
            yield from _scalars(record)
        except (ValueError, IndexError, struct.error, TypeError):
            continue


def _records(stream: BinaryIO) -> Iterator[bytes]:
    while len(head := stream.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        if _masked_crc(head[:8]) != checksum:
            return  # no event file, or a damaged one: where the next record begins is unknown
        if length > _LONGEST_RECORD:
            stream.seek(length + _CHECKSUM, 1)
            continue
        data = stream.read(length + _CHECKSUM)
        if len(data) < length + _CHECKSUM:
            return
        yield data[:length]


def _scalars(record: bytes) -> Iterator[Scalar]:
    time, step = 0.0, 0
    values: list[bytes] = []
    for number, wire, value in _fields(record):
        if (number, wire) == (1, _DOUBLE):
            time = struct.unpack("<d", value)[0]
        elif (number, wire) == (2, _VARINT):
            step = _signed(value)
        elif (number, wire) == (5, _BYTES):
            values += [item for n, w, item in _fields(value) if (n, w) == (1, _BYTES)]
    for name, scalar in map(_value, values):
        if name and scalar is not None:
            yield Scalar(name, time, step, scalar)


def _value(data: bytes) -> tuple[str, float | None]:
    name = ""
    found: float | None = None
    for number, wire, value in _fields(data):
        if (number, wire) == (1, _BYTES):
            name = plain_name(value[: 4 * _LONGEST_NAME].decode("utf-8", "replace"))[:_LONGEST_NAME]
        elif (number, wire) == (2, _FLOAT):
            found = struct.unpack("<f", value)[0]
        elif (number, wire) == (8, _BYTES):
            found = _tensor(value)
    return name, found


def _tensor(data: bytes) -> float | None:
    """Return the value of a tensor of one number, else None."""
    kind, packed, numbers = 0, b"", []
    for number, wire, value in _fields(data):
        if (number, wire) == (1, _VARINT):
            kind = _signed(value)
        elif (number, wire) == (2, _BYTES) and any(n == 2 for n, _, _ in _fields(value)):  # noqa: PLR2004 - its shape
            return None
        elif (number, wire) == (4, _BYTES) or (number in (5, 6) and wire == _BYTES):
            packed = value
        elif (number, wire) == (5, _FLOAT):
            numbers.append(struct.unpack("<f", value)[0])
        elif (number, wire) == (6, _DOUBLE):
            numbers.append(struct.unpack("<d", value)[0])
    form = {_FLOAT32: "<f", _FLOAT64: "<d"}.get(kind)
    if form and len(packed) == struct.calcsize(form):
        numbers.append(struct.unpack(form, packed)[0])
    return numbers[0] if form and len(numbers) == 1 else None


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, wire type and bytes of each field of a message; a varint as eight bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, wire, struct.pack("<Q", value & (2**64 - 1))
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_DOUBLE, _FLOAT):
            length = 8 if wire == _DOUBLE else 4
        else:
            raise ValueError("an unknown type of a field")
        if at + length > len(data):
            raise ValueError("a field is cut off")
        yield key >> 3, wire, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:  # noqa: PLR2004 - bits of the longest number
            raise ValueError("a number is too long")


def _signed(data: bytes) -> int:
    return int(struct.unpack("<q", data)[0])


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _masked_crc(data: bytes) -> int:
    """Return the masked CRC32C of TFRecord files."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF
