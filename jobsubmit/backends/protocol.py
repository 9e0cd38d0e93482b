"""What runs a job: the protocol every backend fulfils, and the values that go in and come out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery

if TYPE_CHECKING:
    from jobsubmit.agent.protocol import FetchOrder
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.common.finding import Finding
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.backend import BackendSpec
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.stores.protocol import ObjectStore
    from jobsubmit.transfer.code_ref import CodeRef


@dataclass(frozen=True)
class Request:
    """What is sent to a backend, as named text documents; secrets and signed addresses stand as names only.

    `backend` says where it goes.
    """

    job_id: str
    documents: Mapping[str, str]
    backend: BackendSpec


@dataclass(frozen=True)
class Delivery:
    """What must reach the nodes and must never be written down: secret values, and signed addresses.

    `store` is the job's own, `code_store` the one that `code` lies in.
    """

    secrets: Mapping[str, str] = field(repr=False)
    order: FetchOrder = field(repr=False)
    store: ObjectStore
    code_store: ObjectStore
    code: CodeRef
    script: Script


@runtime_checkable
class KnowsPython(Protocol):
    """A backend that knows before the start which Python its nodes run."""

    def python(self, plan: LaunchPlan) -> str:
        """Return the program, and in brackets why it is that one; empty where there is none. MUST NOT raise."""

    def missing_modules(self, plan: LaunchPlan, modules: Collection[str]) -> set[str]:
        """Return which of these top-level modules that Python does not find; MUST import none, and MUST NOT raise."""


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
