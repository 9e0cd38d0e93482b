"""The protocol that every backend implements, and the values that it receives and returns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
    """What a backend sends to its platform, as named text documents. Secrets and signed addresses are placeholders.

    `backend` says where the request is sent.
    """

    job_id: str
    documents: Mapping[str, str]
    backend: BackendSpec


@dataclass(frozen=True)
class Delivery:
    """What must reach the nodes. Its secret values and signed addresses must never be stored.

    `store` is the job's own store, `code_store` the one that holds `code`.
    """

    secrets: Mapping[str, str] = field(repr=False)
    order: FetchOrder = field(repr=False)
    store: ObjectStore
    code_store: ObjectStore
    code: CodeRef
    script: Script


@runtime_checkable
class KnowsPython(Protocol):
    """A backend that can determine before the start which Python its nodes run."""

    def python(self, plan: LaunchPlan) -> str:
        """Return the program and, in brackets, why it was chosen; empty if there is none. MUST NOT raise."""

    def missing_modules(self, plan: LaunchPlan, modules: Collection[str]) -> set[str]:
        """Return those of these top-level modules that the Python cannot find. MUST import none, and MUST NOT raise."""

    def package_folder(self, plan: LaunchPlan, name: str) -> Path | None:
        """Return the folder on this machine of a top-level package that the Python finds; None if that is not known.

        MUST import nothing, and MUST NOT raise.
        """


class Backend(Protocol):
    """Run jobs on one platform. Every method raises BackendError if the platform refuses or cannot be reached."""

    layout: Layout
    """The layout of the code in the store that the nodes need, unless the spec says otherwise."""

    ignored_because: str
    """Why image, framework and flavor have no effect here, as the end of a sentence; empty if they do."""

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return what `submit` would send. MUST be pure: equal arguments give equal bytes, and it reads nothing."""

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what a job needs and the platform cannot do, with field, number and remedy. MUST be pure: no requests.

        `bundle` is None if the code is in a bucket already.
        """

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Raise BackendError for what is missing or would be refused, before anything is uploaded.

        MUST NOT start anything, and MUST fail within 10 seconds if the platform does not answer.
        """

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Start the job: the only method that starts anything. Two calls with one job id MUST NOT start two jobs."""

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of the job submitted with this id, or None: the client may have died before storing it."""

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the status now. Raises JobNotFoundError for a handle that does not exist on the platform."""

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines that a query selects, each once, in order of time; those of one rank stay in their order.

        With `follow`, continue until the job is final and all lines were yielded.
        """

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield the recorded events of the job: each has "t", in seconds since the epoch, and "event", a word."""

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield the files with what was measured, in any order: the timing file of each process that was profiled (see
        agent/timing/recorder.py), and the samples of each node (agent/machine/sampler.py).

        It works while the job runs and includes killed attempts; the last line of a file may be incomplete.
        """

    def stacks(self, handle: JobHandle) -> Mapping[int, bytes]:
        """Return the stacks of all threads of each rank when the job hung, by rank: those of the last attempt that did.

        It is empty if the job did not hang, or if the platform keeps nothing but the lines of its nodes.
        """

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask the job to end and return at once; `status` shows when it has ended.

        Its processes get SIGTERM, then `grace` seconds (else the platform's usual time) to save, then SIGKILL. Calling
        it twice is fine: a shorter grace takes effect at once. For a job that has ended it does nothing.
        """

    def delete(self, handle: JobHandle) -> None:
        """Remove what the platform keeps of a job that has ended; if there is nothing, do nothing."""
