"""The index of a job's logs: when which piece of which file was written, as one order of all lines.

Ranks and nodes write their files themselves, one a stream. The supervisor looks at their sizes and appends a record to
the index for each that grew: so every line has a time, and the order stays the same however often they are read.
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
    """Return the record of a log that has grown to `end` bytes."""
    node, rank, stream = source
    return _RECORD.pack(moment, end, node, STREAMS.index(stream), _NO_RANK if rank is None else rank)


def unpack_records(data: bytes) -> Iterator[tuple[Source, int, float]]:
    """Yield whose log had grown to how many bytes at which time; damaged records are skipped."""
    for moment, end, node, stream, rank in _RECORD.iter_unpack(data):
        if stream < len(STREAMS) and rank >= _NO_RANK and fits(moment, TIME):
            yield (node, None if rank == _NO_RANK else rank, STREAMS[stream]), end, moment
