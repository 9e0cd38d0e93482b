"""Jobs: their status, steps, failures, events and lines."""

from __future__ import annotations

from typing import Any, Literal

from jobsubmit.backends.models import State, Stream
from jobsubmit.cli.documents.base import Document, OpenDocument


class Revision(Document):
    """The git revision of a code directory."""

    commit: str
    branch: str
    uncommitted: list[str]
    """Files that differ from the commit, relative to the code directory."""
    diff_sha256: str
    """The SHA-256 of the differences; empty if there are none."""


class CodeDocument(Document):
    """The code of a job in its store."""

    uri: str
    digest: str | None
    """The digest of all files; null if the code was in the bucket already."""
    git: Revision | None


class PhaseDocument(Document):
    """A phase of a job's life. Times are in seconds since the epoch."""

    name: str
    start: float
    end: float | None
    """Null while the phase lasts."""
    attempt: int
    """0 before the first restart."""


class RecoveryDocument(Document):
    """A restart, or a node that was lost or came back. Times are in seconds since the epoch."""

    what: str
    fault: str
    """The fault that `--fault` caused; empty if it was not one."""
    struck_at: float
    detected_at: float
    back_at: float | None
    """When training went on; null if it has not."""
    steps_lost: int | None
    """How many training steps were done again; null if the job prints no steps."""


class FailureDocument(Document):
    """The process that failed first."""

    node: int
    rank: int | None
    """Null if it is not known which rank it was."""
    exit_code: int | None
    signal: int | None
    message: str
    quoted: str
    """Whose lines `last_lines` are: `rank 3` or `node 1`."""
    last_lines: list[str]
    meaning: str
    """What the last lines or the signal mean, where that is known."""
    hint: str
    victims: list[int]
    """The ranks that failed because of it."""
    alike: list[int]
    """The ranks that failed by themselves, with the same kind of exception."""


class JobDocument(Document):
    """A job: what was submitted, its state, and how it failed."""

    id: str
    handle: str
    """`BACKEND://…`: any machine with the same settings can watch the job by it. Empty if nothing was submitted."""
    name: str
    mode: str
    backend: str
    nodes: int
    created: str
    """When it was submitted: ISO 8601 in UTC."""
    state: State
    reason: str
    """One upper-case word for why the job is in this state, for example HANG; empty if there is none."""
    message: str
    code: CodeDocument
    script_sha256: str
    steps: list[PhaseDocument]
    """The phases of the job, in their order."""
    recoveries: list[RecoveryDocument]
    failure: FailureDocument | None
    """Null unless a process failed."""
    details: dict[str, Any]
    """What only this backend knows of the job."""
    warnings: list[str]


class TrainingProgress(Document):
    """How far a training is, by its output; null for what the output does not show."""

    step: int | None
    steps: int | None
    """The total beside the step: of the whole training, or of one epoch if the steps start again in each."""
    epoch: float | None
    epochs: int | None
    loss: float | Literal["nan", "inf", "-inf"] | None
    """The newest value of the loss."""
    loss_name: str
    """The name of the loss as printed, in lower case; empty if there is none."""
    done: float | None
    """The share of the training that is done, from 0 to 1."""
    ends: str | None
    """When the training will end at its pace so far: ISO 8601 in UTC."""


class StatusDocument(JobDocument):
    """A job, and how far its training is."""

    training: TrainingProgress | None
    """Null if the output shows no training."""


class Process(Document):
    """Where a rank runs."""

    node: int
    pid: int


class Description(StatusDocument):
    """A job with all that its directory holds."""

    directory: str
    files: list[str]
    ranks: dict[str, Process]
    """The processes by their rank."""
    rerun_of: str | None


class Summary(Document):
    """A job in a list."""

    id: str
    name: str
    mode: str
    backend: str
    nodes: int
    created: str
    """When it was submitted: ISO 8601 in UTC."""
    handle: str
    state: State
    reason: str
    message: str
    ended: str | None
    """When it ended: ISO 8601 in UTC; null while it runs, or if that is unknown."""
    training: TrainingProgress | None
    """Null if the output shows no training, or if there are many jobs and this one was not read yet."""


class Event(OpenDocument):
    """Something that happened to a job, with fields of its own."""

    t: str
    """When: ISO 8601 in UTC, to the millisecond."""
    event: str


class Line(Document):
    """A line of output."""

    node: int
    rank: int | None
    """Null for what a node prints before and around its ranks."""
    stream: Stream
    time: str
    """When it was written: ISO 8601 in UTC, to the millisecond."""
    text: str
