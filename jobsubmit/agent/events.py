"""The events of a job: one line per event, appended by client, supervisor and ranks."""

from __future__ import annotations

import json
import os
import time

from .atomic_write import append_whole, is_full, read_file
from .job_directory import JobDirectory
from .protocol import Event, EventFields, read_event

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing_extensions import Unpack

_unwritten = []  # type: list[bytes] # lines of this process that a full disk did not take


def append_event(job_dir: str, event: str, **fields: Unpack[EventFields]) -> None:
    """Append one event with its time, whole or not at all; several processes may append at the same time.

    What a full disk does not accept is written with the next event of this process (see `write_events`).
    """
    line = json.dumps({"t": time.time(), "event": event, **fields}, ensure_ascii=False) + "\n"
    _unwritten.append(line.encode("utf-8", "backslashreplace"))
    write_events(job_dir)


def write_events(job_dir: str) -> bool:
    """Write the events that a full disk did not accept before; return whether none is left."""
    while _unwritten:
        try:
            append_whole(JobDirectory(job_dir).events, _unwritten[0])
        except OSError as error:
            if not is_full(error):
                _unwritten.clear()
                raise
            return False
        del _unwritten[0]
    return True


class EventReader:
    """Reads each event once, complete lines only; damaged lines are ignored."""

    def __init__(self, job_dir: str) -> None:
        self.path = JobDirectory(job_dir).events
        self.offset = 0

    def new(self) -> list[Event]:
        """Return the events appended since the last call."""
        try:
            if os.stat(self.path).st_size == self.offset:
                return []
            data = read_file(self.path, start=self.offset)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self.offset += end
        found = (read_event(line) for line in data[:end].split(b"\n") if line)
        return [event for event in found if event is not None]
