"""When each phase of a job started and ended."""

from __future__ import annotations

from .. import events


class PhaseRecorder:
    """Record the start and the end of each phase, once."""

    def __init__(self, job_dir: str) -> None:
        self.job_dir = job_dir
        self.attempt = 0
        self.seen: set[tuple[str, str]] = set()

    def begin_attempt(self, attempt: int) -> None:
        """Start to record the phases of a new attempt."""
        self.attempt, self.seen = attempt, set()

    def start(self, step: str) -> bool:
        """Record the start of a phase, unless it was recorded; return whether it was new."""
        return self._record(step, "start")

    def end(self, step: str) -> bool:
        """Record the end of a phase that was started; return whether it was new."""
        return (step, "start") in self.seen and self._record(step, "end")

    def ended(self, step: str) -> bool:
        """Return whether a phase has ended."""
        return (step, "end") in self.seen

    def _record(self, step: str, edge: str) -> bool:
        if (step, edge) in self.seen:
            return False
        self.seen.add((step, edge))
        events.append_event(self.job_dir, "step", step=step, edge=edge, attempt=self.attempt)
        return True
