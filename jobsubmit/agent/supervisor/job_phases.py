"""When each step of a local job started and ended."""

from __future__ import annotations

from .. import events


class PhaseRecorder:
    """Record when each step started and ended, once."""

    def __init__(self, job_dir: str) -> None:
        self.job_dir = job_dir
        self.attempt = 0
        self.seen: set[tuple[str, str]] = set()

    def begin_attempt(self, attempt: int) -> None:
        """Let the steps that each attempt has begin anew."""
        self.attempt, self.seen = attempt, set()

    def start(self, step: str) -> bool:
        """Record the start of a step, unless it was."""
        return self._record(step, "start")

    def end(self, step: str) -> bool:
        """Record the end of a step that was started; return whether it was new."""
        return (step, "start") in self.seen and self._record(step, "end")

    def ended(self, step: str) -> bool:
        """Return whether a step has ended."""
        return (step, "end") in self.seen

    def _record(self, step: str, edge: str) -> bool:
        if (step, edge) in self.seen:
            return False
        self.seen.add((step, edge))
        events.append_event(self.job_dir, "step", step=step, edge=edge, attempt=self.attempt)
        return True
