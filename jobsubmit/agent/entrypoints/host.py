"""What a client asks a host for, over SSH, one question after the other.

A question is a line of JSON, {"command", "question", "size"}, and then `size` bytes. The answer is a line of JSON, and
then as many bytes as its "bytes" says. `listen` goes on until the next question; `lines` is the last one.

    facts               what the host is, and what it has
    listen              let other hosts connect to some ports, for a moment
    reach               try to connect to such ports
    missing, put        the code that the host does not have yet; receive it
    start               start the agent of a job
    look                what the agent of a job has written
    lines               the log lines of a job
    cancel, delete      end a job; remove it
    empty               remove the cache, unless a job runs

`root` is the host's folder, ~/.jobsubmit by default; a job is in jobs/ID/INDEX below it.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import sys

from .. import status_file
from ..atomic_write import make_private, read_file
from ..hosts import code_cache, lines
from ..hosts.host_queue import remove_queue
from ..job_directory import JobDirectory
from ..preflight import facts, reach
from ..protocol import REQUEST

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

    Answer = dict[str, Any]

_WATCHED = ("status.json", "events.jsonl")
_MEASURED = (*_WATCHED, "timing/*", "stacks/*")
_GROWING = ".jsonl"
_IDLE_SECONDS = 60
_LAST = "lines"


def serve(stream: BinaryIO, root: str) -> int:
    """Answer questions until the input ends, or none comes for some time; return the exit code."""
    while True:
        signal.alarm(_IDLE_SECONDS)
        line = stream.readline()
        signal.alarm(0)
        if not line.endswith(b"\n"):
            return 0
        asked = json.loads(line.decode())
        payload = Payload(stream, asked["size"])
        answer = _answer(asked["command"], root, asked["question"], payload)
        if answer is not None:
            _say(answer)
        sys.stdout.flush()
        if asked["command"] == _LAST or payload.left:
            return 0  # what was not read of a payload is no question


def _answer(command: str, root: str, question: dict[str, Any], payload: Payload) -> Answer | None:
    try:
        return _COMMANDS[command](root, question, payload)
    except (OSError, ValueError) as error:
        return {"error": str(error) or type(error).__name__}


class Payload:
    """The bytes that belong to a question; `stream` is what they are read from."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.left = stream, size

    def read(self, most: int | None = None) -> bytes:
        """Return as many bytes, or all that are left; fewer where the input ends."""
        data = self.stream.read(self.left if most is None else min(most, self.left))
        self.left -= len(data)
        return data


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def job_folder(root: str, question: dict[str, Any]) -> str:
    """Return the folder of a host's part in a job; raise ValueError for an id that is none."""
    name = str(question["job_id"])
    if not name or "/" in name or name in (".", ".."):
        raise ValueError("%r is not the id of a job" % name)
    return os.path.join(root, "jobs", name, str(int(question["index"])))


def _facts(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    return facts.collect(root, question)


def _listen(root: str, question: dict[str, Any], payload: Payload) -> Answer | None:
    reach.listen(question["addresses"], question["seeds"], _say, payload.stream)
    return None


def _reach(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    return reach.try_ports(question["addresses"], question["ports"])


def _missing(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    return {"missing": code_cache.missing(root, question["names"])}


def _put(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    for name, size in question["entries"]:
        code_cache.put(root, name, size, payload.read)
    return {}


def _start(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    from ..hosts.start import StartError, start  # half of all code, which no other question needs

    assignment = json.loads(payload.read())
    make_private(root)
    try:
        return start(root, job_folder(root, assignment), assignment)
    except StartError as error:
        return {"error": str(error), "hint": error.hint}


def _look(root: str, question: dict[str, Any], payload: Payload) -> Answer | None:
    """Send the files that are new or have grown: a line with [path, offset, size] of each, and then their bytes."""
    folder = job_folder(root, question)
    if not os.path.isdir(folder):
        return {"is_known": False}
    is_alive = lines.is_alive(folder)  # first: an agent that has ended has written all
    known = question["known"]
    found = []
    for pattern in _MEASURED if question["measured"] else _WATCHED:
        for base in ("", os.path.join("run-*", "node-*")):
            found += glob.glob(os.path.join(glob.escape(folder), base, pattern))
    parts, data = [], []
    for path in sorted({*found, os.path.join(folder, REQUEST)}):
        name = os.path.relpath(path, folder)
        offset = known.get(name, 0) if _only_grows(name) else 0
        try:
            content = read_file(path, start=offset)
        except OSError:
            continue
        if content or not offset:
            parts.append([name, offset, len(content)])
            data.append(content)
    is_cancelled = os.path.exists(JobDirectory(folder).cancel)
    size = sum(map(len, data))
    _say({"is_known": True, "is_alive": is_alive, "is_cancelled": is_cancelled, "parts": parts, "bytes": size})
    sys.stdout.buffer.writelines(data)
    sys.stdout.buffer.flush()
    return None


def _only_grows(name: str) -> bool:
    return name.endswith(_GROWING)


def _lines(root: str, question: dict[str, Any], payload: Payload) -> Answer | None:
    folder = job_folder(root, question)
    _say({"is_known": os.path.isdir(folder)})
    lines.LineServer(folder, question["query"]).run(payload.stream if question["follow"] else None)
    return None


def _cancel(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    folder = job_folder(root, question)
    if not os.path.isdir(folder):
        return {"is_known": False}
    is_alive = lines.is_alive(folder)
    if is_alive:
        status_file.ask_cancel(folder, question["grace"])
    return {"is_known": True, "is_alive": is_alive}


def _delete(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    folder = job_folder(root, question)
    if lines.is_alive(folder):
        return {"is_alive": True}
    job = os.path.dirname(folder)
    real = os.path.realpath(job)
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.islink(job) and not os.listdir(real):
        os.unlink(job)
    for above in (real, os.path.dirname(real), os.path.join(root, "jobs"), os.path.dirname(job)):
        try:
            os.rmdir(above)
        except OSError:
            break
    remove_queue()
    return {"is_alive": False}


def _empty(root: str, question: dict[str, Any], payload: Payload) -> Answer:
    for job in sorted(glob.glob(os.path.join(glob.escape(root), "jobs", "*", "*"))):
        if lines.is_alive(job):
            return {"error": "job %s still runs" % os.path.basename(os.path.dirname(job))}
    freed = code_cache.size(root)
    shutil.rmtree(os.path.join(root, "cache"), ignore_errors=True)
    try:
        os.rmdir(root)
    except OSError:
        pass  # jobs that have ended are still there
    return {"freed": freed}


_COMMANDS: dict[str, Callable[[str, dict[str, Any], Payload], Answer | None]] = {
    "facts": _facts,
    "listen": _listen,
    "reach": _reach,
    "missing": _missing,
    "put": _put,
    "start": _start,
    "look": _look,
    "lines": _lines,
    "cancel": _cancel,
    "delete": _delete,
    "empty": _empty,
}
