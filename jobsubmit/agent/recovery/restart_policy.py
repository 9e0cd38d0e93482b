"""Whether a job is started again after a failure."""

from __future__ import annotations

import re

from ..protocol import RestartPolicy
from .outcome import Outcome

_PROCESS_FAILED = ("EXIT_CODE", "SIGNAL", "OOM")
_CONDITIONS = {
    "failure": _PROCESS_FAILED,
    "signal": ("SIGNAL", "OOM"),
    "node_failure": ("NODE_FAILED",),
    "hang": ("HANG",),
}


def wants_restart(policy: RestartPolicy | None, outcome: Outcome, restarts: int) -> bool:
    """Return whether a policy allows another attempt after so many restarts."""
    if policy is None or restarts >= policy["max"] or outcome.state != "FAILED":
        return False
    return any(_applies(condition, outcome) for condition in policy["on"])


def _applies(condition: str, outcome: Outcome) -> bool:
    kind, _, wanted = condition.partition(":")
    if kind == "exit":
        return outcome.reason in _PROCESS_FAILED and outcome.exit_code == int(wanted)
    if kind == "log":
        return re.search(wanted[1:-1], "\n".join(outcome.words)) is not None
    return outcome.reason in _CONDITIONS[kind]
