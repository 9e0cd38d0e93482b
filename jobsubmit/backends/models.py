"""What every backend returns about a job: its handle, its status, its log lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

Stream: TypeAlias = Literal["stdout", "stderr"]


class State(str, Enum):
    """The state of a job."""

    PENDING = "PENDING"
    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"
    UNKNOWN = "UNKNOWN"
    """The record is damaged, or a newer version wrote it: the state is unknown, and waiting does not help."""

    @property
    def is_final(self) -> bool:
        """Return whether the job has certainly ended."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)

    @property
    def may_change(self) -> bool:
        """Return whether a later status may differ."""
        return not self.is_final and self is not State.UNKNOWN


@dataclass(frozen=True)
class JobHandle:
    """The address of a submitted job: `backend://path`."""

    backend: str
    path: str

    def __str__(self) -> str:
        return f"{self.backend}://{self.path}"

    @classmethod
    def parse(cls, text: str) -> JobHandle:
        """Parse a handle from its text form."""
        backend, _, path = text.partition("://")
        return cls(backend, path)


@dataclass(frozen=True)
class Failure:
    """The process that failed first, with an exit code or a signal; `rank` is None if it is unknown.

    `last_lines` are the last lines of `quoted`: of the rank, or of its node if the rank printed nothing. `meaning` and
    `hint` explain them, if known. `victims` are the ranks that failed because of it, `alike`
    those that failed by themselves with the same kind of exception.
    """

    node: int
    rank: int | None
    exit_code: int | None
    signal: int | None
    message: str
    quoted: str
    last_lines: tuple[str, ...]
    meaning: str = ""
    hint: str = ""
    victims: tuple[int, ...] = ()
    alike: tuple[int, ...] = ()

    @property
    def others(self) -> list[str]:
        """Return a line about the ranks that failed in the same way, and one about those that ended because of it."""
        lines = []
        if self.alike:
            named = ", ".join(map(str, self.alike))
            lines.append(
                f"the same failure: ranks {named}" if len(self.alike) > 1 else f"the same failure: rank {named}"
            )
        if self.victims:
            named = ", ".join(map(str, self.victims))
            is_one = len(self.victims) == 1
            lines.append(f"ended as a result: rank {named}" if is_one else f"ended as a result: ranks {named}")
        return lines

    @property
    def shell_code(self) -> int:
        """Return the exit code as a shell would show it: 128+N for signal N."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 1


@dataclass(frozen=True)
class JobPhase:
    """A phase of a job: its start and end in seconds since the epoch; `end` is None while it runs.

    `attempt` is 0 before the first restart.
    """

    name: str
    start: float
    end: float | None = None
    attempt: int = 0

    @property
    def title(self) -> str:
        """Return the name to show."""
        return "launcher, rendezvous" if self.name == "rendezvous" else self.name.replace("_", " ")


@dataclass(frozen=True)
class Recovery:
    """What a restart, or a lost or added node, cost; times are in seconds since the epoch.

    `steps_lost` counts the training steps that were repeated, if the job's log lines show its steps.
    """

    what: str
    fault: str
    struck_at: float
    detected_at: float
    back_at: float | None
    steps_lost: int | None


@dataclass(frozen=True)
class JobStatus:
    """The status of a job: `reason` is one upper-case word or empty, `message` a sentence for people."""

    state: State
    reason: str = ""
    message: str = ""
    failure: Failure | None = None
    steps: tuple[JobPhase, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> float | None:
        """Return when the job ended, if it has: as its backend reports, else the end of its last phase."""
        if not self.state.is_final:
            return None
        reported = self.details.get("ended")
        if isinstance(reported, float):
            return reported
        return max((step.end or step.start for step in self.steps), default=None)


@dataclass(frozen=True)
class LogLine:
    """One line of output; `rank` is None for a line of the node itself.

    `time` is when it was written, in seconds since the epoch, as exactly as the platform reports it.
    """

    node: int
    rank: int | None
    stream: Stream
    time: float
    text: str


@dataclass(frozen=True)
class LogQuery:
    """A selection of log lines: by node, rank and stream, since a time, matching a pattern; the last `tail` of them."""

    node: int | None = None
    rank: int | None = None
    stream: Stream | None = None
    since: float | None = None
    tail: int | None = None
    grep: re.Pattern[str] | None = None

    def wants_source(self, node: int, rank: int | None, stream: str) -> bool:
        """Return whether a line of this origin can be selected."""
        return self.node in (None, node) and self.rank in (None, rank) and self.stream in (None, stream)

    def wants(self, line: LogLine) -> bool:
        """Return whether a line is selected, apart from `tail`."""
        return (
            self.wants_source(line.node, line.rank, line.stream)
            and (self.since is None or line.time >= self.since)
            and (self.grep is None or self.grep.search(line.text) is not None)
        )


EVERYTHING = LogQuery()
