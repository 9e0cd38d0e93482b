"""The report of a failure: the process, how it failed, and its last lines."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress

from ..logs.reading import last_lines
from .first_failure import ProcessFailure

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from ..protocol import Failure
    from ..supervisor.job import Job
    from .first_failure import Rank

LINES = 20
_PLACE, _BEGINNING = 2, 5  # lines before and from the first line of an exception
_TRACEBACK = "Traceback (most recent call last)"
_OWN_FRAME = 'File "%s/' % os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CODE_OF_FRAME = "    "
_FRAME = re.compile(r'\s*File "([^"]+)", line \d+')
_OF_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
_COMPILED_MODULES = "Extension modules: "
_COMPILED_FRAME = re.compile(r"frame #\d+: ")
_LABEL = re.compile(r"\[rank\d+\]: ")  # that torch writes before the lines of a traceback
_SHORT_SECONDS = 0.05
_WORDS = 400  # that are looked through for what they mean


def report_failure(job: Job, first: ProcessFailure) -> Failure:
    """Return the report of the process that failed first; secrets are removed from the quoted lines."""
    job.note_logs(now=True)
    node, rank, code = first.node, first.rank, first.code
    own = _words(job, node, rank) if rank is not None else []
    quoted = "rank %d" % rank if rank is not None and own else "node %d" % node
    words = without_own_frames(own or _words(job, node, None))
    how = "exit code %d" % code if code >= 0 else describe_signal(-code)
    if first.crashed_by:
        how += ", then %s while it shut down" % describe_signal(first.crashed_by)
    return {
        "node": node,
        "rank": rank,
        "exit_code": code if code > 0 else None,
        "signal": -code if code < 0 else None,
        "message": "%s failed first: %s" % (describe_process(node, rank), how),
        "quoted": quoted,
        "last_lines": choose_lines(words),
        "words": words,
        "evidence": first.evidence(),
    }


def without_own_frames(lines: list[str]) -> list[str]:
    """Return lines without frames of jobsubmit, and without those of compiled code and Python's list of its modules."""
    kept: list[str] = []
    is_frame = False
    for line in lines:
        if is_frame and line.startswith(_CODE_OF_FRAME):
            continue
        is_frame = line.lstrip().startswith(_OWN_FRAME)
        if not (is_frame or line.startswith(_COMPILED_MODULES) or _COMPILED_FRAME.match(line)):
            kept.append(line)
    return kept


def choose_lines(words: list[str]) -> list[str]:
    """Return the last lines, and before them what is needed of an exception that is longer than that.

    That is its beginning if its message is so long, and the last frame that is in no library if there are so many.
    """
    plain = [_LABEL.sub("", line, count=1) for line in words]
    starts = [index for index, line in enumerate(plain) if line.startswith(_TRACEBACK)]
    after = range(starts[-1] + 1, len(plain)) if starts else range(0)
    begins = next((index for index in after if plain[index][:1].strip()), len(plain))
    if begins >= len(words) - LINES:
        return _with_own_frame(words, plain, starts[-1] if starts else len(words))
    head = words[max(begins - _PLACE, 0) : begins + _BEGINNING]
    tail = words[-(LINES - len(head) - 1) :]
    left = len(words) - begins - _BEGINNING - len(tail)
    return [*head, "… (%d lines)" % left, *tail]


def _with_own_frame(words: list[str], plain: list[str], start: int) -> list[str]:
    """Return the last lines with the last frame of the job's own code before them, if it is not among them."""
    found = ((index, _FRAME.match(line)) for index, line in enumerate(plain) if index >= start)
    frames = [(index, frame) for index, frame in found if frame]
    own = [index for index, frame in frames if not _OF_LIBRARY.search(frame[1])]
    if not own or own[-1] >= len(words) - LINES:
        return words[-LINES:]
    place = own[-1]
    after = next((index for index, _ in frames if index > place), len(words))
    head = words[place : min(after, place + _PLACE)]
    tail = words[-(LINES - len(head) - 1) :]
    left = len(words) - place - len(head) - len(tail)
    return [*head, "… (%d lines)" % left, *tail] if left > 0 else words[place:]


def report_early_end(job: Job, gone: Rank, victim: ProcessFailure, step: int | None) -> Failure:
    """Return the report of a rank that ended with exit code 0 while others needed it; `victim` failed first of them."""
    failure = report_failure(job, ProcessFailure(gone.node, gone.rank, 0, gone.end_time()))
    at = "" if step is None else " at step %d" % step
    before = max(0.0, victim.t - gone.end_time())
    who = describe_process(victim.node, victim.rank)
    failure["exit_code"] = 0
    failure["message"] = "%s ended with exit code 0%s, %s before %s failed without it" % (
        describe_process(gone.node, gone.rank),
        at,
        "%.1f s" % before if before >= _SHORT_SECONDS else "just",
        who,
    )
    return failure


def _words(job: Job, node: int, rank: int | None) -> list[str]:
    """Return the last lines of a process of this attempt."""
    lines = last_lines(job.dir, node, rank, _WORDS, since=job.attempt_began)
    return [job.without_secrets(line) for line in lines]


def _without_secrets(job: Job, value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_secrets(job, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(job, inner) for inner in value]
    return job.without_secrets(value) if isinstance(value, str) else value


def describe_process(node: int, rank: int | None) -> str:
    """Return the name of a process in messages: node 1, rank 3."""
    return "node %d" % node if rank is None else "node %d, rank %d" % (node, rank)


def describe_signal(number: int) -> str:
    """Return a signal by number and name."""
    try:
        return "signal %d (%s)" % (number, signal.Signals(number).name)
    except ValueError:
        return "signal %d" % number


def keep_error_file(job: Job, rank: Rank) -> None:
    """Keep torch's error.json of a rank, which torch writes if @record is used, and removes at the end."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(rank.error_file or "", encoding="utf-8") as stream:
            error = json.load(stream)
        with open(job.files.error_of(rank.rank), "w", encoding="utf-8") as kept:
            json.dump(_without_secrets(job, error), kept, ensure_ascii=False, indent=1)
