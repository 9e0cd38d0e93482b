"""Faults for rehearsals, as users write them: `kill node 1 at step 20`, `delay node 2 by 30s`."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Literal, NamedTuple

from jobsubmit.common.durations import parse_duration
from jobsubmit.errors import UsageError

_KILL = re.compile(r"kill (node|rank) (\d{1,6})(?: with (\w+))?(?: (at step|after) (\w+))?")
_DELAY = re.compile(r"delay node (\d{1,6}) by (\w+)")
_HINT = "write it like `kill node 1 at step 20`, `kill rank 3 with SIGTERM after 5s` or `delay node 2 by 30s`"


class Fault(NamedTuple):
    """One fault: a signal to a rank or to all processes of a node, or a node that starts late.

    It takes effect at the first output line that reports the step `at_step` or a later one, or `after` seconds after
    all ranks have started.
    """

    text: str
    action: Literal["kill", "delay"]
    target: Literal["node", "rank"]
    number: int
    signal: int = 0
    at_step: int | None = None
    after: int = 0
    by: int = 0

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse a fault; raise UsageError if it is invalid."""
        words = " ".join(text.split())
        if found := _KILL.fullmatch(words):
            target, index, name, when, moment = found.groups()
            number = signal.SIGKILL if name is None else _signal(text, name)
            at_step = _number(text, moment) if when == "at step" else None
            after = _seconds(text, moment) if when == "after" else 0
            return cls(words, "kill", "node" if target == "node" else "rank", int(index), int(number), at_step, after)
        if found := _DELAY.fullmatch(words):
            return cls(words, "delay", "node", int(found[1]), by=_seconds(text, found[2]))
        raise UsageError(f"--fault {text!r} is invalid", _HINT)


def _signal(text: str, name: str) -> signal.Signals:
    try:
        if name.isdecimal():
            return signal.Signals(int(name))
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
    except (ValueError, KeyError):
        raise UsageError(f"--fault {text!r}: unknown signal {name}", "use e.g. SIGKILL, SIGTERM or SIGSTOP") from None


def _number(text: str, word: str) -> int:
    if not word.isdecimal():
        raise UsageError(f"--fault {text!r}: {word} is not a step number", _HINT)
    return int(word)


def _seconds(text: str, word: str) -> int:
    seconds = parse_duration(int(word) if word.isdecimal() else word)
    if seconds is None:
        raise UsageError(f"--fault {text!r}: {word} is not a duration", "write it in seconds, or as 90s, 30m, 12h, 2d")
    return seconds


def require_local(faults: Sequence[Fault], *, is_local: bool) -> None:
    """Raise UsageError for faults of a job that does not run on this machine."""
    if faults and not is_local:
        raise UsageError("--fault is supported only by the local backend", "run the job with --backend local")


def require_fit(faults: Sequence[Fault], nodes: int, nproc: int | None) -> None:
    """Raise UsageError for a fault whose node or rank a job does not have."""
    for fault in faults:
        most = nodes if fault.target == "node" else nodes * nproc if nproc else None
        if most is not None and fault.number >= most:
            last = f" to {fault.target} {most - 1}" if most > 1 else ""
            text = f"--fault {fault.text!r}: the job has only {fault.target} 0{last}"
            raise UsageError(text, "use a lower number")
