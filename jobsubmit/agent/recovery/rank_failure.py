"""The report of a failure: who, how, and the last words."""

from __future__ import annotations

import json
import os
import signal

from ..logs import index

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from ..supervisor.job import Job

LINES = 20
EVIDENCE = ("was_told", "is_victim", "is_leader", "t")  # by which failures of several nodes are compared
_WORDS = 400  # that are looked through for what they mean


def failure(job: Job, first: dict[str, Any]) -> dict[str, Any]:
    """Return the report of the process that failed first; secrets are struck out of the quoted lines."""
    job.note_logs(now=True)
    node, rank, code = first["node"], first["rank"], first["code"]
    own = _words(job, node, rank) if rank is not None else []
    quoted = "rank %d" % rank if own else "node %d" % node
    words = own or _words(job, node, None)
    how = "exit code %d" % code if code > 0 else spelled_signal(-code)
    if first.get("crashed_by"):
        how += ", then %s while it shut down" % spelled_signal(first["crashed_by"])
    return {
        "node": node,
        "rank": rank,
        "exit_code": code if code > 0 else None,
        "signal": -code if code < 0 else None,
        "message": "%s failed first: %s" % (spelled(node, rank), how),
        "quoted": quoted,
        "last_lines": words[-LINES:],
        "words": words,
        "evidence": {name: first.get(name) for name in EVIDENCE},
    }


def _words(job: Job, node: int, rank: int | None) -> list[str]:
    """Return what a process of this attempt said last."""
    lines = index.last_lines(job.dir, node, rank, _WORDS, since=job.attempt_began)
    return [job.without_secrets(line) for line in lines]


def _struck(job: Job, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _struck(job, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_struck(job, inner) for inner in value]
    return job.without_secrets(value) if isinstance(value, str) else value


def spelled(node: int, rank: int | None) -> str:
    """Name a process as people do."""
    return "node %d" % node + ("" if rank is None else ", rank %d" % rank)


def spelled_signal(number: int) -> str:
    """Name a signal by number and name."""
    try:
        return "signal %d (%s)" % (number, signal.Signals(number).name)
    except ValueError:
        return "signal %d" % number


def keep_error_file(job: Job, rank: dict[str, Any]) -> None:
    """Keep torch's error.json of a rank, which torch writes where @record is used and removes at the end."""
    try:
        with open(rank["error_file"], encoding="utf-8") as stream:
            error = json.load(stream)
        with open(os.path.join(job.dir, "error-rank-%d.json" % rank["rank"]), "w", encoding="utf-8") as kept:
            json.dump(_struck(job, error), kept, ensure_ascii=False, indent=1)
    except (OSError, ValueError, KeyError, TypeError):
        pass
