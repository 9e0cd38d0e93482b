"""The Slurm backend: sbatch submits, the controller and the files of the nodes give the status."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsubmit.agent import atomic_write, status_file
from jobsubmit.agent.atomic_write import make_private, replace_file
from jobsubmit.agent.node_contract import FETCH_ORDER
from jobsubmit.backends.models import EVERYTHING, JobHandle, JobPhase, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.shared.agent_request import build_node_request
from jobsubmit.backends.shared.limits import far_data_limits, order_limit, word_limits
from jobsubmit.backends.shared.node_results import complete_status
from jobsubmit.backends.shared.polling import tolerate_errors
from jobsubmit.backends.shared.shared_folder import SharedFolder
from jobsubmit.backends.slurm import clients
from jobsubmit.backends.slurm.batch_script import LOG, NAME, agent_path, build_document
from jobsubmit.backends.slurm.spec import SlurmBackendSpec
from jobsubmit.backends.slurm.states import MESSAGES, STATES, explain_wait
from jobsubmit.common.finding import IGNORED, Finding
from jobsubmit.errors import BackendError, JobNotFoundError

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.config import Settings
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.backend import BackendSpec
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.transfer.code_ref import CodeRef

_LONGEST_ORDER = 100_000  # characters; the kernel takes no longer variable
_LONGEST_PATH = 4096


def _too_short(plan: LaunchPlan) -> Iterator[Finding]:
    spec = SlurmBackendSpec.of(plan.backend)
    if spec.time is not None and plan.timeout is not None and spec.time < plan.timeout:
        text = f"is {spec.time / 60:.0f} min, and `timeout` {plan.timeout / 60:.0f} min: Slurm would end the job first"
        yield Finding("warning", "limit", "backend.time", text, "set it a little longer than `timeout`, or remove it")


def _without_containers(plan: LaunchPlan) -> Iterator[Finding]:
    """Yield the fields that pin what a job runs in, and that Slurm does not read: the job would run outside of it."""
    wanted = plan.image or (plan.framework and plan.framework.name) or ""
    for name in plan.ignored:
        if name in ("image", "framework"):
            text = f"the Slurm backend starts no containers: the job uses the software of its nodes, not {wanted}"
            hint = f"start the container in `command`, or remove `{name}` if the nodes have all that the job needs"
            yield Finding("warning", IGNORED, name, text, hint)


class SlurmBackend:
    """Run each job as one Slurm job: one task per node, and a folder that all nodes share with this machine."""

    layout: Layout = "archive"
    ignored_because = "which uses the software of its nodes"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return the document for sbatch (see Backend)."""
        text = build_document(plan, build_node_request(plan, script, code, job_id), self._shared(plan.backend), job_id)
        return Request(job_id, {NAME: text}, plan.backend)

    def _shared(self, backend: BackendSpec) -> Path:
        spec = SlurmBackendSpec.of(backend)
        return Path(spec.shared_dir) if spec.shared_dir else self.settings.state_dir / "slurm"

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what Slurm cannot do (see Backend)."""
        yield from _without_containers(plan)
        yield from word_limits(plan)
        yield from far_data_limits(plan, "on a shared file system")
        yield from _too_short(plan)
        yield from order_limit(bundle, code, _LONGEST_ORDER)

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Have Slurm check the document, without submitting it (see Backend)."""
        clients.cluster_name()
        clients.sbatch(request.documents[NAME], clients.clean_environment(), "--test-only")
        shared = self._shared(plan.backend)
        try:
            if not shared.is_dir():
                make_private(str(shared))
            _write_agent(agent_path(shared))
        except OSError as error:
            hint = "set backend.shared_dir to a folder that all nodes see under the same path"
            raise BackendError(f"{shared} cannot be written: {error.strerror}", hint) from error

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Hand the document to sbatch's standard input (see Backend)."""
        folder = self._shared(request.backend) / request.job_id
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise BackendError(
                f"--job-id {request.job_id} was already submitted", "use another id, or omit it"
            ) from error
        order = json.dumps(delivery.order)
        if len(order) > _LONGEST_ORDER:
            folder.rmdir()
            raise BackendError("the code has too many files to fetch one by one", "use layout: archive")
        environment = {**clients.clean_environment(), **delivery.secrets, FETCH_ORDER: order}
        cluster = clients.cluster_name()
        try:
            answer = clients.sbatch(request.documents[NAME], environment, "--parsable", "--export=ALL")
            number = answer.strip().partition(";")[0]
            if not number.isdigit():
                raise BackendError(f"sbatch returned no job number: {answer.strip()}", "check backend.extra_sbatch")
        except BaseException as error:
            found = None
            with suppress(BackendError):  # it was perhaps submitted: ask, as far as Slurm answers
                found = clients.find(request.job_id)
            if found is None or not isinstance(error, BackendError):
                if found is not None:  # whoever interrupts a submission does not want the job
                    clients.cancel(found)
                shutil.rmtree(folder, ignore_errors=True)
                raise
            number = found  # only the answer was lost
        handle = JobHandle("slurm", f"{cluster}/{number}")
        with suppress(OSError):  # it only helps when Slurm has forgotten the job
            make_private(str(self._note(handle).parent))
            self._note(handle).write_text(str(folder), encoding="utf-8")
        return handle

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of the Slurm job whose comment names the id (see Backend)."""
        number = clients.find(job_id)
        return JobHandle("slurm", f"{clients.cluster_name()}/{number}") if number else None

    # ── watching ────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the status of the controller, with details from the files of the nodes (see Backend)."""
        job, folder = self._look(handle)
        if job is None:
            assert folder
            forgotten = JobStatus(State.LOST, "FORGOTTEN", "Slurm no longer has the job, and its nodes left no result")
            return complete_status(forgotten, folder, max(folder.attempts(), default=0))
        state, reason = STATES.get(job.state, (State.RUNNING, job.state))
        details = {"slurm": job.state, "slurm_nodes": job.nodes, "attempt": job.restarts}
        number = handle.path.rpartition("/")[2]
        message = MESSAGES.get(reason, "").format(job.reason, number)
        message = message or (explain_wait(job.reason, number) if state is State.QUEUED else "")
        if state is State.QUEUED and job.restarts and not reason:
            state, message = State.RECOVERING, f"restart {job.restarts}: {message}"
        reported = JobStatus(state, reason, message, steps=_queue(job), details=details)
        attempt = max([job.restarts, *folder.attempts()]) if folder else 0
        return complete_status(reported, folder, attempt) if folder else reported

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of the nodes' files (see Backend)."""
        _, folder = self._look(handle)
        look = tolerate_errors(lambda: follow and self.status(handle).state.may_change)
        return folder.lines(query, look) if folder else iter(())

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield the events that the nodes recorded, in order of time (see Backend)."""
        _, folder = self._look(handle)
        return iter(folder.events() if folder else ())

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield the files of the ranks (see Backend)."""
        _, folder = self._look(handle)
        return folder.timings() if folder else iter(())

    def stacks(self, handle: JobHandle) -> Mapping[int, bytes]:
        """Return what the ranks wrote when the job hung (see Backend)."""
        _, folder = self._look(handle)
        return folder.stacks() if folder else {}

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask the nodes to end the job, or Slurm if no node runs (see Backend)."""
        job, folder = self._look(handle)
        if job is None or STATES.get(job.state, (State.RUNNING, ""))[0].is_final:
            return
        nodes_can_end_it = job.state == "RUNNING" and folder is not None and bool(folder.statuses(job.restarts))
        is_overdue = folder is not None and folder.is_cancel_overdue()
        if folder is not None and folder.directory.is_dir():
            status_file.ask_cancel(str(folder.directory), grace)
        if is_overdue or not nodes_can_end_it:
            clients.cancel(handle.path.rpartition("/")[2])

    def delete(self, handle: JobHandle) -> None:
        """Remove the job's folder (see Backend)."""
        _, folder = self._look(handle)
        if folder is not None and folder.is_job():
            shutil.rmtree(folder.directory, ignore_errors=True)
        with suppress(OSError):
            self._note(handle).unlink()

    def _look(self, handle: JobHandle) -> tuple[clients.SlurmJob | None, SharedFolder | None]:
        """Return what Slurm says of a job, and its folder; raise JobNotFoundError where nothing is known of it."""
        cluster, _, number = handle.path.partition("/")
        if not number.isdigit():
            raise JobNotFoundError(
                f"{handle} is not a valid handle: expected slurm://cluster/4711", "run `jobsubmit list` to see all jobs"
            )
        here = clients.cluster_name()
        if cluster != here:
            raise JobNotFoundError(
                f"{handle}: Slurm's clients on this machine use the cluster {here}",
                "run this on a machine of that job's cluster",
            )
        job = clients.look(number)
        folder = job.folder if job else None
        with suppress(OSError):  # a damaged note may hold what no path is
            noted = atomic_write.read_file(str(self._note(handle)), _LONGEST_PATH)
            if noted.startswith(b"/") and b"\0" not in noted:
                place = Path(os.fsdecode(noted))
                place.is_dir()  # raises OSError for a name that is too long
                folder = place
        if folder is None and (job is None or not job.is_ours):
            raise JobNotFoundError(
                f"{handle}: Slurm has no such job, or jobsubmit did not submit it", "run `squeue --me` to see your jobs"
            )
        return job, SharedFolder(folder, LOG) if folder else None

    def _note(self, handle: JobHandle) -> Path:
        """Return the file that remembers a job's folder when Slurm has forgotten it."""
        return self.settings.state_dir / "slurm-jobs" / handle.path.replace("/", "-")


def _queue(job: clients.SlurmJob) -> tuple[JobPhase, ...]:
    if job.submitted is None:
        return ()
    return (JobPhase("queue", job.submitted, job.started if job.state != "PENDING" else None),)


def _write_agent(path: Path) -> None:
    """Write the agent below the shared folder, once: others may use that folder, and this agent, too."""
    data = agent_archive()
    if not path.exists() or path.read_bytes() != data:
        replace_file(str(path), data, is_private=False)
