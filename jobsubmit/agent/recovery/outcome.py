"""How a job, or one attempt at it, ended."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any


class Outcome(Exception):  # noqa: N818 - it ends the watch, for better or worse
    """End the watch: what became of the job."""

    def __init__(self, state: str, reason: str = "", message: str = "", failure: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.state, self.reason, self.message, self.failure = state, reason, message, failure

    def as_status(self) -> dict[str, Any]:
        """Return the fields of status.json that it sets."""
        return {"state": self.state, "reason": self.reason, "message": self.message, "failure": self.failure}
