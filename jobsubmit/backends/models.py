"""What every backend says of a job: its handle, its state, its lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

Stream: TypeAlias = Literal["stdout", "stderr"]


class State(str, Enum):
    """Where a job is in its life."""

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
    """Its record is damaged, or was written by a newer version: nothing can be said, and waiting does not help."""

    @property
    def is_final(self) -> bool:
        """Return whether the job has ended, for certain."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)

    @property
    def may_change(self) -> bool:
        """Return whether it is worth while to look again."""
        return not self.is_final and self is not State.UNKNOWN


@dataclass(frozen=True)
class JobHandle:
    """A submitted job: `backend://where/it/is`."""

    backend: str
    path: str

    def __str__(self) -> str:
        return f"{self.backend}://{self.path}"

    @classmethod
    def parse(cls, text: str) -> JobHandle:
        """Read a handle that was printed before."""
        backend, _, path = text.partition("://")
        return cls(backend, path)


@dataclass(frozen=True)
class Failure:
    """The process that failed first; `rank` is None where it is unknown; it has a code or a signal.

    `last_lines` are those of `quoted`: of the rank, or of its node where the rank itself said nothing. `meaning` and
    `hint` explain them where they are known. `victims` are the ranks that failed because of it.
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

    @property
    def shell_code(self) -> int:
        """Return the exit code as a shell would show it: 128+N for signal N."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 1


@dataclass(frozen=True)
class JobPhase:
    """When a step of a job began and ended, in seconds since the epoch; `end` is None while it runs.

    `attempt` is 0 before the first restart.
    """

    name: str
    start: float
    end: float | None = None
    attempt: int = 0

    @property
    def title(self) -> str:
        """Return what people call it."""
        return "launcher, rendezvous" if self.name == "rendezvous" else self.name.replace("_", " ")


@dataclass(frozen=True)
class Recovery:
    """What a restart, or a lost or gained node, has cost; times are in seconds since the epoch.

    `steps_lost` counts the training steps that had to be done again, where the job's lines tell its steps.
    """

    what: str
    fault: str
    struck_at: float
    detected_at: float
    back_at: float | None
    steps_lost: int | None


@dataclass(frozen=True)
class JobStatus:
    """How a job is: `reason` is one upper-case word (or nothing), `message` a sentence for people."""

    state: State
    reason: str = ""
    message: str = ""
    failure: Failure | None = None
    steps: tuple[JobPhase, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LogLine:
    """One line of output; `rank` is None for what a node says before and around its ranks.

    `time` is when it was written, in seconds since the epoch, as exactly as the engine can tell.
    """

    node: int
    rank: int | None
    stream: Stream
    time: float
    text: str


@dataclass(frozen=True)
class LogQuery:
    """Choose lines of a job: of a node, a rank, a stream, written since a time, matching a pattern; the last `tail`."""

    node: int | None = None
    rank: int | None = None
    stream: Stream | None = None
    since: float | None = None
    tail: int | None = None
    grep: re.Pattern[str] | None = None

    def wants_source(self, node: int, rank: int | None, stream: str) -> bool:
        """Return whether any line of this origin can be among the chosen."""
        return self.node in (None, node) and self.rank in (None, rank) and self.stream in (None, stream)

    def wants(self, line: LogLine) -> bool:
        """Return whether a line is among the chosen, but for `tail`."""
        return (
            self.wants_source(line.node, line.rank, line.stream)
            and (self.since is None or line.time >= self.since)
            and (self.grep is None or self.grep.search(line.text) is not None)
        )


EVERYTHING = LogQuery()
