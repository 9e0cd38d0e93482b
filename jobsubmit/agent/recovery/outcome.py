"""How a job, an attempt or a node of it ended; of several nodes, which failed first."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ..job_directory import SIGNAL_BASE
from ..protocol import Evidence, Failure, NodeStatus
from ..status_file import STOPPED_BY_PLATFORM
from .first_failure import are_alike

FETCH_FAILED = "FETCH_FAILED"  # a reason
STOPPED, KILLED = SIGNAL_BASE + signal.SIGTERM, SIGNAL_BASE + signal.SIGKILL  # exit codes


class Outcome(Exception):  # noqa: N818 - it ends the watch, for better or worse
    """The outcome of a job; raised to end the job early."""

    def __init__(self, state: str, reason: str = "", message: str = "", failure: Failure | None = None) -> None:
        super().__init__(reason)
        self.state, self.reason, self.message, self.failure = state, reason, message, failure

    @property
    def words(self) -> list[str]:
        """Return the last lines of the process that failed first, as many as were kept for the diagnosis."""
        return self.failure.get("words", []) if self.failure else []

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the process that failed first, None where it has none."""
        return self.failure["exit_code"] if self.failure else None

    def as_status(self) -> NodeStatus:
        """Return the fields of status.json that it sets."""
        return {"state": self.state, "reason": self.reason, "message": self.message, "failure": self.failure}


def find_outcome(statuses: Sequence[NodeStatus], nodes: int) -> Outcome | None:
    """Return the outcome of a job from the statuses of its nodes, or None if they do not determine it."""
    failed = [status for status in statuses if status["state"] == "FAILED"]
    if failed:
        return _failed(failed)
    if any(status["state"] == "CANCELLED" and status["reason"] != STOPPED_BY_PLATFORM for status in statuses):
        return Outcome("CANCELLED")
    if statuses and len(statuses) == nodes and all(status["state"] == "SUCCEEDED" for status in statuses):
        return Outcome("SUCCEEDED")
    return None


def _failed(failed: list[NodeStatus]) -> Outcome:
    first, *others = sorted(failed, key=_order)
    failure = first.get("failure")
    if failure is not None:
        victims, alike = set(failure.get("victims", ())), set(failure.get("alike", ()))
        for status in others:
            other = status.get("failure")
            if other is not None:
                like = [rank for rank in (other["rank"], *other.get("alike", ())) if rank is not None]
                (alike if are_alike(failure.get("evidence", {}), other.get("evidence", {})) else victims).update(like)
                victims.update(other.get("victims", ()))
        failure = {**failure, "victims": sorted(victims), "alike": sorted(alike)}
    return Outcome("FAILED", first["reason"], first["message"], failure)


def _order(status: NodeStatus) -> tuple[bool, bool, bool, float]:
    """Order as a single supervisor orders its failures; what failed without a process, e.g. a fetch, is a cause."""
    failure = status.get("failure")
    evidence: Evidence = failure.get("evidence", {}) if failure else {}
    explained = bool(failure and evidence.get("is_leader") and (failure["exit_code"] or 0) > 0)
    moment = evidence.get("t") or status.get("ended") or 0.0
    return bool(evidence.get("was_told")), bool(evidence.get("is_victim")), explained, moment


def shell_code(outcome: Outcome) -> int:
    """Return the exit code that a shell would show for an outcome."""
    if outcome.state == "SUCCEEDED":
        return 0
    if outcome.state == "CANCELLED":
        return STOPPED
    if outcome.failure and outcome.failure["signal"]:
        return SIGNAL_BASE + outcome.failure["signal"]
    return outcome.exit_code or 1
