"""Whether a job is started again after a failure, and after which pause."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from .outcome import Outcome

_LONGEST_PAUSE = 600.0
_PROCESS_FAILED = ("EXIT_CODE", "SIGNAL", "OOM")
_CONDITIONS = {
    "failure": _PROCESS_FAILED,
    "signal": ("SIGNAL", "OOM"),
    "node_failure": ("NODE_FAILED",),
    "hang": ("HANG",),
}


def restarts_after(policy: dict[str, Any] | None, outcome: Outcome, restarts: int, lines: list[str]) -> bool:
    """Tell whether a policy {"max", "on", "backoff"} wants another attempt; `lines` are the failure's last words."""
    if policy is None or restarts >= policy["max"] or outcome.state != "FAILED":
        return False
    return any(_applies(condition, outcome, lines) for condition in policy["on"])


def _applies(condition: str, outcome: Outcome, lines: list[str]) -> bool:
    failure = outcome.failure or {}
    kind, _, wanted = condition.partition(":")
    if kind == "exit":
        return outcome.reason in _PROCESS_FAILED and failure.get("exit_code") == int(wanted)
    if kind == "log":
        return re.search(wanted[1:-1], "\n".join(lines)) is not None
    return outcome.reason in _CONDITIONS[kind]


def pause_before(policy: dict[str, Any], restart: int) -> float:
    """Return the seconds to wait before a restart, the first being 1: twice as long each time."""
    return float(min(policy["backoff"] * 2 ** (restart - 1), _LONGEST_PAUSE))
