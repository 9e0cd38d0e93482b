"""The files of a local job's directory: who writes what, and how."""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

EVENTS = "events.jsonl"  # one line an event, appended by client, supervisor and hook
STATUS = "status.json"  # replaced whole, by the supervisor (or by the keeper when that is dead)
LOCK = "lock"  # held as long as keeper or supervisor lives
CANCEL = "cancel"  # exists once somebody wants the job to end
GANG_LOG = "gang.log"  # what keeper and supervisor themselves had to say
LOGS = "logs"
NODES = "nodes"


def node_log(job_dir: str, node: int) -> str:
    """Return the log of what a node says before and around its ranks."""
    return os.path.join(job_dir, LOGS, "node-%d.log" % node)


def rank_log(job_dir: str, rank: int) -> str:
    """Return the log of one rank."""
    return os.path.join(job_dir, LOGS, "rank-%d.log" % rank)


def append_event(job_dir: str, event: str, **fields: object) -> None:
    """Append one event with the time it happened; one write, so that lines of several processes never mix."""
    line = json.dumps({"t": time.time(), "event": event, **fields}, ensure_ascii=False) + "\n"
    descriptor = os.open(os.path.join(job_dir, EVENTS), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode("utf-8", "backslashreplace"))
    finally:
        os.close(descriptor)


class EventReader:
    """Read each event once, whole lines only."""

    def __init__(self, job_dir: str) -> None:
        self.path = os.path.join(job_dir, EVENTS)
        self.offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the events appended since the last call."""
        try:
            if os.stat(self.path).st_size == self.offset:
                return []
            with open(self.path, "rb") as stream:
                stream.seek(self.offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self.offset += end
        return [json.loads(line) for line in data[:end].splitlines()]


def write_status(job_dir: str, status: dict[str, Any]) -> None:
    """Replace the status, whole."""
    path = os.path.join(job_dir, STATUS)
    temporary = "%s.%d" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(status, stream, ensure_ascii=False, indent=1)
    os.replace(temporary, path)


def read_status(job_dir: str) -> dict[str, Any]:
    """Return the status, or an empty mapping before there is one."""
    try:
        with open(os.path.join(job_dir, STATUS), encoding="utf-8") as stream:
            status: dict[str, Any] = json.load(stream)
            return status
    except FileNotFoundError:
        return {}


def last_lines(path: str, count: int, limit: int = 16384) -> list[str]:
    """Return the last non-empty lines of a log, as text."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - limit))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
