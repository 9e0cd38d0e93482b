"""The index of a job's logs: when each piece of each file was written, which gives one order of all lines.

Ranks and nodes write their own files, one per stream. The supervisor checks their sizes, and appends a record to the
index for each file that grew. So every line has a time, and all lines have the same order each time they are read.
"""

from __future__ import annotations

import struct

from ..job_directory import STREAMS
from ..json_form import TIME, fits

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Source: TypeAlias = tuple[int, int | None, str]  # node, rank, stream
    Line: TypeAlias = tuple[float, Source, bytes]  # time of writing in seconds since the epoch, whose, without its end

_RECORD = struct.Struct("<dQHHi")  # time, end of the piece in bytes, node, stream, rank (or -1)
RECORD_BYTES = _RECORD.size
_NO_RANK = -1


def pack_record(source: Source, end: int, moment: float) -> bytes:
    """Return the index record of a log that has grown to `end` bytes."""
    node, rank, stream = source
    return _RECORD.pack(moment, end, node, STREAMS.index(stream), _NO_RANK if rank is None else rank)


def unpack_records(data: bytes) -> Iterator[tuple[Source, int, float]]:
    """Yield (source, size in bytes, time) of each index record; damaged records are skipped."""
    for moment, end, node, stream, rank in _RECORD.iter_unpack(data):
        if stream < len(STREAMS) and rank >= _NO_RANK and fits(moment, TIME):
            yield (node, None if rank == _NO_RANK else rank, STREAMS[stream]), end, moment
