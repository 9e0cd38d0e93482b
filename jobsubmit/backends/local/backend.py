"""The local backend: hands a job to the guardian and the supervisor that run it, and reads what they write."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.agent import processes, status_file
from jobsubmit.agent.atomic_write import make_private
from jobsubmit.agent.events import EventReader
from jobsubmit.agent.isolated_python import agent_command
from jobsubmit.agent.job_directory import LOCAL_REQUEST, JobDirectory
from jobsubmit.agent.python_folder import folder_of
from jobsubmit.agent.status_file import read_status
from jobsubmit.agent.supervisor import process_group
from jobsubmit.agent.supervisor.hang_detector import read_stacks
from jobsubmit.backends.local.liveness import find_watcher
from jobsubmit.backends.local.orphan_processes import find_survivors, find_watchers
from jobsubmit.backends.local.python import ChosenPython, choose_python, find_missing, find_package
from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.agent_request import build_request
from jobsubmit.backends.shared.agent_status import parse_status, read_timing_files
from jobsubmit.backends.shared.limits import word_limits
from jobsubmit.backends.shared.log_reader import read_lines
from jobsubmit.common.file_lock import is_locked
from jobsubmit.common.finding import Finding
from jobsubmit.common.isolation import python_command
from jobsubmit.errors import BackendError, JobNotFoundError

if TYPE_CHECKING:
    from jobsubmit.agent.protocol import Assignment, Event, NodeStatus
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.config import Settings
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.job_spec import Layout
    from jobsubmit.transfer.code_ref import CodeRef

_MOST_PER_CORE = 64
_FEWER = "reduce resources.nodes or resources.nproc_per_node, or use another backend"
_KILL_SECONDS = 5.0
_END_SECONDS = 5.0  # a supervisor needs a moment after it has written that the job is over


class LocalBackend:
    """Run each job as a group of processes of its own, below the state directory."""

    layout: Layout = "archive"
    ignored_because = "which uses this machine's Python"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return the job as one JSON document (see Backend)."""
        document = build_request(plan, script, code, job_id)
        return Request(job_id, {LOCAL_REQUEST: json.dumps(document, ensure_ascii=False, indent=2) + "\n"}, plan.backend)

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield the limits of Linux and of this machine that the job exceeds (see Backend)."""
        yield from word_limits(plan)
        processes, cores = plan.nodes * (plan.nproc_per_node or 1), os.cpu_count() or 1
        if processes > _MOST_PER_CORE * cores:
            text = f"{processes:,} processes for the {cores} cores of this machine: they may not start"
            field = "resources.nodes" if plan.nodes > 1 else "resources.nproc_per_node"
            yield Finding("warning", "limit", field, text, _FEWER)
        yield from _unknown_program(plan)

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Raise BackendError if this machine cannot start the job (see Backend)."""
        if shutil.which("bash") is None:
            raise BackendError("bash is not on PATH", "install bash: the start script needs it")
        python = _required_python(_given_python(plan))
        if plan.has_launcher and find_missing(python, ["torch"]):
            raise BackendError(
                f"{python.program} ({python.why}) has no torch, and the launcher is part of torch",
                "activate the environment that your training runs in, set backend.python to its Python, or run: "
                "pip install 'jobsubmit[train]'",
            )

    def python(self, plan: LaunchPlan) -> str:
        """Return which Python the nodes run, and why (see KnowsPython)."""
        python = choose_python(_given_python(plan))
        return f"{python.program} ({python.why})" if python else ""

    def missing_modules(self, plan: LaunchPlan, modules: Collection[str]) -> set[str]:
        """Return the modules that the nodes' Python does not find (see KnowsPython); preflight checks a launcher's."""
        python = choose_python(_given_python(plan))
        asked = set(modules) - ({"torch"} if plan.has_launcher else set())
        return find_missing(python, asked) if python else set()

    def package_folder(self, plan: LaunchPlan, name: str) -> Path | None:
        """Return where the nodes' Python has a package (see KnowsPython)."""
        python = choose_python(_given_python(plan))
        return find_package(python, name) if python else None

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Start guardian and supervisor; return once they hold the job's port and its lock (see Backend)."""
        document = json.loads(request.documents[LOCAL_REQUEST])
        files = JobDirectory(self.settings.job_dir(request.job_id))
        make_private(files.path)
        assignment: Assignment = {
            "request": document,
            "order": delivery.order,
            "secrets": dict(delivery.secrets),
            "client_folder": str(Path.cwd()),
            "python_folder": folder_of(_required_python(document.get("python")).program, files.path),
            "data_staging": python_command("jobsubmit.backends.local.data_staging"),
        }
        if read_status(files.path):
            raise BackendError(f"{request.job_id} was already submitted", "use another --job-id, or omit it")
        _start_guardian(files, assignment)
        return JobHandle("local", request.job_id)

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of a job that has begun (see Backend)."""
        return JobHandle("local", job_id) if read_status(str(self.settings.job_dir(job_id))) else None

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the current status (see Backend): a job whose guardian is dead is LOST, and does not stay RUNNING."""
        files = self._files(handle)
        try:
            status = status_file.load_status(files.path)
            if not _is_over(status):
                is_alive, elsewhere = find_watcher(files, status)
                status = status_file.load_status(files.path)  # it may have ended between the two looks
        except ValueError as error:
            return JobStatus(State.UNKNOWN, "DAMAGED", str(error))
        except OSError as error:
            raise BackendError(f"{files.path} cannot be read: {error.strerror}", may_pass=True) from error
        if status and _is_over(status):
            return parse_status(status, EventReader(files.path).new())
        if not is_alive:
            return _lost(files)
        if not status:
            return JobStatus(State.PENDING)
        if Path(files.cancel).exists():
            status = {**status, "state": State.CANCELLING.value}
        now = parse_status(status, EventReader(files.path).new())
        if elsewhere is None:
            return now
        now = replace(now, message=elsewhere.text, details={**now.details, "host": elsewhere.host})
        return replace(now, state=State.UNKNOWN, reason="SILENT") if elsewhere.is_silent else now

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of the nodes' and ranks' files (see Backend)."""
        folder = Path(self._files(handle).path)
        return read_lines(lambda: [folder], query, lambda: follow and self.status(handle).state.may_change)

    def events(self, handle: JobHandle) -> Iterator[Event]:
        """Yield the lines of events.jsonl (see Backend)."""
        return iter(EventReader(self._files(handle).path).new())

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield the files of the ranks (see Backend)."""
        return read_timing_files([Path(self._files(handle).path)])

    def stacks(self, handle: JobHandle) -> Mapping[int, bytes]:
        """Return what the ranks wrote when the job hung (see Backend)."""
        return dict(read_stacks(self._files(handle).path))

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask the supervisor to end the job (see Backend); of a lost job, end the remaining processes."""
        files = self._files(handle)
        status_file.ask_cancel(files.path, grace)
        is_alive, elsewhere = find_watcher(files, read_status(files.path))
        if is_alive or elsewhere:
            for pid in find_watchers(files):  # one that was stopped would not see that it is to end the job
                processes.send(pid, signal.SIGCONT)
            return
        deadline = time.monotonic() + _KILL_SECONDS
        while (left := find_survivors(files)) and time.monotonic() < deadline:
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            time.sleep(0.02)
        process_group.end(files.path)

    def delete(self, handle: JobHandle) -> None:
        """Make sure that no process of the job runs; all its files are in its own directory (see Backend)."""
        files = self._files(handle)
        deadline = time.monotonic() + _END_SECONDS
        while is_locked(Path(files.lock)):
            if not _is_over(read_status(files.path)) or time.monotonic() > deadline:
                raise BackendError(f"{handle.path} is still running", f"end it first: jobsubmit cancel {handle.path}")
            time.sleep(0.02)
        if left := find_survivors(files):
            pids = ", ".join(map(str, left))
            raise BackendError(
                f"processes of the job are still running ({pids})", f"end them: jobsubmit cancel {handle.path}"
            )
        process_group.end(files.path)

    def _files(self, handle: JobHandle) -> JobDirectory:
        job_dir = self.settings.job_dir(handle.path)
        if "/" in handle.path or handle.path in ("", ".", "..") or not job_dir.is_dir():
            raise JobNotFoundError(
                f"{handle}: there is no such job on this machine", "run `jobsubmit list` to see all jobs"
            )
        return JobDirectory(job_dir)


def _start_guardian(files: JobDirectory, assignment: Assignment) -> None:
    """Start the guardian of the job; raise BackendError unless it reports that it is ready."""
    log_descriptor = os.open(files.agent_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(log_descriptor, "ab") as log:
        guardian = subprocess.Popen(
            agent_command("supervisor.guardian", files.path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd=files.path,
        )
    assert guardian.stdin and guardian.stdout
    try:
        with guardian.stdout as answer:
            with suppress(BrokenPipeError), guardian.stdin as pipe:  # its log says why it would not read
                pipe.write(json.dumps(assignment).encode())
            ready = answer.readline()
    except BaseException:
        guardian.kill()  # whoever interrupts a submission does not want the job; its supervisor ends with it
        raise
    # The guardian lives on by itself; it is not this process's to wait for.
    guardian.returncode = 0
    if ready != b"ready\n":
        last_words = Path(files.agent_log).read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        problem = ready.decode("utf-8", "replace").strip() or " ".join(last_words) or "no reason was reported"
        raise BackendError(f"the job could not be started: {problem}", f"see {files.agent_log}")


def _is_over(status: NodeStatus | None) -> bool:
    return bool(status and status["state"] in State.__members__ and not State(status["state"]).may_change)


def _lost(files: JobDirectory) -> JobStatus:
    message = "the supervisor and the guardian of the job have ended"
    if left := find_survivors(files):
        job_id = Path(files.path).name
        message += f", and its processes are still running ({', '.join(map(str, left))}): jobsubmit cancel {job_id}"
    return JobStatus(State.LOST, "SUPERVISOR_DIED", message)


def _given_python(plan: LaunchPlan) -> str | None:
    from jobsubmit.backends.local.spec import LocalBackendSpec

    return LocalBackendSpec.of(plan.backend).python


def _required_python(plan_python: str | None) -> ChosenPython:
    """Return the Python of the nodes; raise BackendError if there is none."""
    python = choose_python(plan_python)
    if python is None:
        raise BackendError("`python` is not on PATH", "activate the environment that your training runs in")
    if not os.access(python.program, os.X_OK):
        raise BackendError(f"{python.program} ({python.why}) is not an executable program", "correct backend.python")
    return python


def _unknown_program(plan: LaunchPlan) -> Iterator[Finding]:
    """Yield an error for a start command whose program this machine lacks, unless the job itself may install it.

    Where the machine has no bash either, preflight says so, and this says nothing.
    """
    program = plan.command[0] if plan.command else ""
    is_installed_first = plan.setup or plan.requirements or "PATH" in dict(plan.env)
    if not program or "/" in program or program.endswith(".sh") or is_installed_first or shutil.which("bash") is None:
        return
    python = choose_python(_given_python(plan))
    folder = Path(python.program).parent if python else Path()
    if shutil.which(program) is None and not (folder / program).exists():
        text = f"this machine has no program {program}"
        yield Finding("error", "limit", "command", text, "correct its name, or install it")
