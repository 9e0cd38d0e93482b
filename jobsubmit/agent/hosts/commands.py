"""What a client may ask a host for, but for its facts: each command as a function (see entrypoints/host.py)."""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys

from .. import status_file
from ..atomic_write import make_private, read_file
from ..job_directory import JobDirectory
from ..preflight import reach
from ..protocol import REQUEST
from . import code_cache, lines
from .answers import say
from .host_queue import remove_queue

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .answers import Answer, Payload

_WATCHED = ("status.json", "events.jsonl")
_MEASURED = (*_WATCHED, "timing/*", "stacks/*")
_GROWING = ".jsonl"


def job_folder(root: str, question: dict[str, Any]) -> str:
    """Return the folder of a host's part in a job; raise ValueError for an id that is none."""
    name = str(question["job_id"])
    if not name or "/" in name or name in (".", ".."):
        raise ValueError("%r is not the id of a job" % name)
    return os.path.join(root, "jobs", name, str(int(question["index"])))


def _listen(root: str, question: dict[str, Any], payload: Payload) -> Answer | None:
    reach.listen(question["addresses"], question["seeds"], say, payload.stream)
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
    from .start import StartError, start  # half of all code, which no other question needs

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
    say({"is_known": True, "is_alive": is_alive, "is_cancelled": is_cancelled, "parts": parts, "bytes": size})
    sys.stdout.buffer.writelines(data)
    sys.stdout.buffer.flush()
    return None


def _only_grows(name: str) -> bool:
    return name.endswith(_GROWING)


def _lines(root: str, question: dict[str, Any], payload: Payload) -> Answer | None:
    folder = job_folder(root, question)
    say({"is_known": os.path.isdir(folder)})
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


COMMANDS: dict[str, Callable[[str, dict[str, Any], Payload], Answer | None]] = {
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
