"""How a job, or one attempt at it, ended."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from ..protocol import Failure, NodeStatus


class Outcome(Exception):  # noqa: N818 - it ends the watch, for better or worse
    """End the watch: what became of the job."""

    def __init__(self, state: str, reason: str = "", message: str = "", failure: Failure | None = None) -> None:
        super().__init__(reason)
        self.state, self.reason, self.message, self.failure = state, reason, message, failure

    @property
    def words(self) -> list[str]:
        """Return the last lines of the process that failed first, as many as were kept to be explained."""
        return self.failure.get("words", []) if self.failure else []

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the process that failed first, None where it has none."""
        return self.failure["exit_code"] if self.failure else None

    def as_status(self) -> NodeStatus:
        """Return the fields of status.json that it sets."""
        return {"state": self.state, "reason": self.reason, "message": self.message, "failure": self.failure}
