"""The files of a local job's directory: who writes what, and how."""

from __future__ import annotations

import json
import os
import signal
import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

REQUEST = "local.json"  # what was submitted, as the backend was asked for it
EVENTS = "events.jsonl"  # one line an event, appended by client, supervisor and hook
STATUS = "status.json"  # replaced whole, by the supervisor (or by the keeper when that is dead)
LOCK = "lock"  # held as long as keeper or supervisor lives
CANCEL = "cancel"  # exists once somebody wants the job to end
GANG_LOG = "gang.log"  # what keeper and supervisor themselves had to say
LOGS = "logs"
STACKS = "stacks"  # where each rank was when the job hung
STREAMS = ("stdout", "stderr")
SIGNAL_BASE = 128  # a shell tells signal N as exit code 128 + N
STOPPED_BY_ENGINE = "STOPPED_BY_ENGINE"  # the reason of a node that was told to end by what had started it
STACK_SIGNAL = (signal.SIGRTMAX - 3) if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2  # asks a rank for its stacks


def log_of(job_dir: str, node: int, rank: int | None, stream: str) -> str:
    """Return the log of one stream of a rank, or of what its node says before and around its ranks."""
    name = "node-%d" % node if rank is None else "rank-%d" % rank
    return os.path.join(job_dir, LOGS, "%s.%s.log" % (name, stream))


def stacks_of(job_dir: str, rank: int) -> str:
    """Return the file that a rank writes its stacks to when it is asked."""
    return os.path.join(job_dir, STACKS, "rank-%d.txt" % rank)


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


def replace_file(path: str, text: str) -> None:
    """Replace a file, whole: a reader finds the old text or the new one."""
    temporary = "%s.%d" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, path)


def write_status(job_dir: str, status: dict[str, Any]) -> None:
    """Replace the status, whole."""
    replace_file(os.path.join(job_dir, STATUS), json.dumps(status, ensure_ascii=False, indent=1))


def read_status(job_dir: str) -> dict[str, Any]:
    """Return the status, or an empty mapping before there is one."""
    try:
        with open(os.path.join(job_dir, STATUS), encoding="utf-8") as stream:
            status: dict[str, Any] = json.load(stream)
            return status
    except FileNotFoundError:
        return {}


def ask_cancel(job_dir: str, grace: float | None) -> None:
    """Ask whoever watches a job to end it, within a grace time in seconds."""
    replace_file(os.path.join(job_dir, CANCEL), "" if grace is None else repr(grace))


def cancel_grace(job_dir: str, usual: float) -> float | None:
    """Return the grace time of whoever wants the job to end, or None if nobody does."""
    try:
        with open(os.path.join(job_dir, CANCEL), encoding="ascii") as stream:
            return float(stream.read() or usual)
    except FileNotFoundError:
        return None
