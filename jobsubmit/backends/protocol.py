"""What runs a job: the protocol every backend fulfils, and the values that go in and come out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from jobsubmit.errors import BackendError

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.common.finding import Finding
    from jobsubmit.config import Settings
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.backends import BackendSpec
    from jobsubmit.spec.model import Layout
    from jobsubmit.stores.protocol import ObjectStore
    from jobsubmit.transfer.code_ref import CodeRef
    from jobsubmit.transfer.fetch_plan import FetchOrder

Stream: TypeAlias = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


class State(str, Enum):
    """Name where a job is in its life."""

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
        """Tell whether the job has ended, for certain."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)

    @property
    def may_change(self) -> bool:
        """Tell whether it is worth while to look again."""
        return not self.is_final and self is not State.UNKNOWN


@dataclass(frozen=True)
class Request:
    """Hold what is sent to a backend, as named text documents; secrets and signed addresses stand as names only.

    `backend` says where it goes.
    """

    job_id: str
    documents: Mapping[str, str]
    backend: BackendSpec


@dataclass(frozen=True)
class Delivery:
    """Hold what must reach the nodes and must never be written down: secret values, and signed addresses.

    `store` is the job's own, `code_store` the one that `code` lies in.
    """

    secrets: Mapping[str, str] = field(repr=False)
    order: FetchOrder = field(repr=False)
    store: ObjectStore
    code_store: ObjectStore
    code: CodeRef
    script: Script


@dataclass(frozen=True)
class JobHandle:
    """Name a submitted job: `backend://where/it/is`."""

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
    """Name the process that failed first; `rank` is None where none can be told; it has a code or a signal.

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
class Step:
    """Say when a step of a job began and ended, in seconds since the epoch; `end` is None while it runs.

    `attempt` is 0 before the first restart.
    """

    name: str
    start: float
    end: float | None = None
    attempt: int = 0


@dataclass(frozen=True)
class Recovery:
    """Say what a restart, or a lost or gained node, has cost; times are in seconds since the epoch.

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
    """Say how a job is: `reason` is one upper-case word (or nothing), `message` a sentence for people."""

    state: State
    reason: str = ""
    message: str = ""
    failure: Failure | None = None
    steps: tuple[Step, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LogLine:
    """Hold one line of output; `rank` is None for what a node says before and around its ranks.

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
        """Tell whether any line of this origin can be among the chosen."""
        return self.node in (None, node) and self.rank in (None, rank) and self.stream in (None, stream)

    def wants(self, line: LogLine) -> bool:
        """Tell whether a line is among the chosen, but for `tail`."""
        return (
            self.wants_source(line.node, line.rank, line.stream)
            and (self.since is None or line.time >= self.since)
            and (self.grep is None or self.grep.search(line.text) is not None)
        )


EVERYTHING = LogQuery()


class Backend(Protocol):
    """Run jobs on one engine. Every method raises BackendError when the engine refuses or cannot be reached."""

    layout: Layout
    """How the engine's nodes want the code to lie in the store, unless the spec says otherwise."""

    ignored_because: str
    """Why image, framework and flavor mean nothing here, as the end of a sentence; empty where they do."""

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return what `submit` would send. MUST be pure: equal arguments give equal bytes, and nothing is read."""

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what of a job this engine cannot do, with field, number and remedy. MUST be pure, and ask nobody.

        `bundle` is None where the code is in a bucket already.
        """

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Raise BackendError for what can be known to be missing or refused before anything is uploaded.

        MUST NOT start anything, and MUST fail within 10 seconds where the engine does not answer.
        """

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Start the job; the only method that changes the world. Twice with one job id MUST NOT start two jobs."""

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of the job that was submitted under an id, if there is one: its client may have died."""

    def status(self, handle: JobHandle) -> JobStatus:
        """Return what is true now; raises JobNotFoundError for a handle the engine does not know."""

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines that a query chooses, each once, in order of time and per rank in its own order.

        With `follow` until the job is final and all were yielded.
        """

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield what is recorded of the job: each has "t", seconds since the epoch, and "event", a word."""

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield the timing file of each process that was profiled (see agent/timing/recorder.py), in any order.

        Also while the job runs, and what is left of attempts that were killed; the last line of a file may be cut off.
        """

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask the job to end and return; `status` tells when it has.

        Its processes get SIGTERM, `grace` seconds (else the engine's usual time) to save, then SIGKILL. Twice is fine,
        and a shorter grace counts at once; on a job that ended it does nothing.
        """

    def delete(self, handle: JobHandle) -> None:
        """Remove what the engine keeps of a job that has ended; that there is nothing is fine."""


def open_backend(kind: str, settings: Settings) -> Backend:
    """Return the backend of a kind; loads its client library only now."""
    if kind == "local":
        from jobsubmit.backends.local.backend import LocalBackend

        return LocalBackend(settings)
    if kind == "slurm":
        from jobsubmit.backends.slurm.backend import SlurmBackend

        return SlurmBackend(settings)
    if kind == "volcano":
        from jobsubmit.backends.volcano.backend import VolcanoBackend

        return VolcanoBackend(settings)
    if kind == "modelarts":
        from jobsubmit.backends.modelarts.backend import ModelArtsBackend

        return ModelArtsBackend(settings)
    raise BackendError(f"the backend {kind!r} is not known to this version of jobsubmit", "upgrade jobsubmit")
