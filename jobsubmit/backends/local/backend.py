"""The local backend: hands a job to the gang of processes that runs it, and reads what they write."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsubmit import agent
from jobsubmit.agent import files, processes
from jobsubmit.agent.isolated_python import isolated
from jobsubmit.agent.supervisor import containment
from jobsubmit.backends.local.liveness import watched
from jobsubmit.backends.local.survivors import survivors, watchers
from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.agent_request import asked, timing_files, told_status
from jobsubmit.backends.shared.limits import word_limits
from jobsubmit.backends.shared.log_reader import chosen_lines
from jobsubmit.common.file_lock import is_locked
from jobsubmit.common.finding import Finding
from jobsubmit.common.isolation import python_command
from jobsubmit.errors import BackendError, JobNotFoundError

if TYPE_CHECKING:
    from jobsubmit.bundle.model import Bundle
    from jobsubmit.config import Settings
    from jobsubmit.plan.launch_plan import LaunchPlan
    from jobsubmit.plan.script import Script
    from jobsubmit.spec.model import Layout
    from jobsubmit.transfer.code_ref import CodeRef

_MOST_PER_CORE = 64
_KILL_SECONDS = 5.0
# Looks where the nodes will look, and imports nothing from there.
_FINDS_TORCH = """
import importlib.util, os, site, sys
from importlib.machinery import PathFinder
places = [site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
sys.exit(not (importlib.util.find_spec("torch") or PathFinder.find_spec("torch", places)))
"""
# Only the agent can be imported, and of this version: nothing is added to the path.
_GUARDIAN = (
    "import sys; agent = sys.modules['agent'] = type(sys)('agent'); agent.__path__ = [sys.argv.pop(1)]; "
    "from agent.supervisor.guardian import main; main()"
)


class LocalBackend:
    """Run each job as a group of processes of its own, below the state directory."""

    layout: Layout = "archive"
    ignored_because = "which uses this machine's Python"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return the job as one JSON document (see Backend)."""
        document = asked(plan, script, code, job_id)
        return Request(job_id, {files.REQUEST: json.dumps(document, ensure_ascii=False, indent=2) + "\n"}, plan.backend)

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        """Yield what Linux and this machine cannot do (see Backend)."""
        yield from word_limits(plan)
        processes, cores = plan.nodes * (plan.nproc_per_node or 1), os.cpu_count() or 1
        if processes > _MOST_PER_CORE * cores:
            text = f"{processes:,} processes for the {cores} cores of this machine: they may not start"
            yield Finding("warning", "limit", "resources.nodes", text, "take fewer nodes here, or another backend")

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Raise BackendError where this machine cannot start the job (see Backend)."""
        if shutil.which("bash") is None:
            raise BackendError("there is no bash on PATH", "install bash: the start script needs it")
        _python_folder(needs_torch=plan.command is None and plan.mode != "spawn")

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Start the gang and return once it has its port and its lock (see Backend)."""
        document = json.loads(request.documents[files.REQUEST])
        order = {
            "request": document,
            "order": delivery.order,
            "secrets": dict(delivery.secrets),
            "client_folder": str(Path.cwd()),
            "python_folder": _python_folder(needs_torch=False),
            "carrier": python_command("jobsubmit.backends.local.data_carrier"),
        }
        job_dir = self.settings.job_dir(request.job_id)
        files.make_private(str(job_dir))
        if files.read_status(str(job_dir)):
            raise BackendError(f"{request.job_id} was submitted before", "give another --job-id, or none")
        log_descriptor = os.open(job_dir / files.GANG_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(log_descriptor, "ab") as log:
            keeper = subprocess.Popen(
                isolated("-c", _GUARDIAN, agent.__path__[0], str(job_dir)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=job_dir,
            )
        assert keeper.stdin and keeper.stdout
        try:
            with keeper.stdout as said:
                with suppress(BrokenPipeError), keeper.stdin as order_pipe:  # it says in its log why it would not read
                    order_pipe.write(json.dumps(order).encode())
                ready = said.readline()
        except BaseException:
            keeper.kill()  # whoever interrupts a submission does not want the job; its supervisor ends with it
            raise
        # The keeper lives on by itself; it is not this process's to wait for.
        keeper.returncode = 0
        if ready != b"ready\n":
            said_last = (job_dir / files.GANG_LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            problem = ready.decode("utf-8", "replace").strip() or " ".join(said_last) or "it said nothing"
            raise BackendError(f"the job could not be started: {problem}", f"see {job_dir / files.GANG_LOG}")
        return JobHandle("local", request.job_id)

    def find(self, job_id: str) -> JobHandle | None:
        """Return the handle of a job whose gang has begun (see Backend)."""
        return JobHandle("local", job_id) if files.read_status(str(self.settings.job_dir(job_id))) else None

    def status(self, handle: JobHandle) -> JobStatus:
        """Return what is true now (see Backend): a job whose keeper is dead is LOST, never RUNNING for ever."""
        job_dir = self._job_dir(handle)
        try:
            told = files.load_status(str(job_dir))
            if not _is_over(told):
                is_alive, elsewhere = watched(job_dir, told)
                told = files.load_status(str(job_dir))  # it may have ended between the two looks
        except ValueError as error:
            return JobStatus(State.UNKNOWN, "DAMAGED", str(error))
        except OSError as error:
            raise BackendError(f"{job_dir} cannot be read: {error.strerror}", may_pass=True) from error
        events = files.EventReader(str(job_dir)).new()
        if _is_over(told):
            return told_status(told, events)
        if not is_alive:
            return _lost(job_dir)
        if not told:
            return JobStatus(State.PENDING)
        if (job_dir / files.CANCEL).exists():
            told = {**told, "state": State.CANCELLING}
        now = told_status(told, events)
        if elsewhere is None:
            return now
        now = replace(now, message=elsewhere.text, details={**now.details, "host": elsewhere.host})
        return replace(now, state=State.UNKNOWN, reason="SILENT") if elsewhere.is_silent else now

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines of the nodes' and ranks' files (see Backend)."""
        job_dir = self._job_dir(handle)
        return chosen_lines(lambda: [job_dir], query, lambda: follow and self.status(handle).state.may_change)

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        """Yield the lines of events.jsonl (see Backend)."""
        return iter(files.EventReader(str(self._job_dir(handle))).new())

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        """Yield the files of the ranks (see Backend)."""
        return timing_files([self._job_dir(handle)])

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        """Ask the supervisor to end the job (see Backend); of a lost job, end what is left."""
        job_dir = self._job_dir(handle)
        files.ask_cancel(str(job_dir), grace)
        told = files.read_status(str(job_dir))
        is_alive, elsewhere = watched(job_dir, told)
        if is_alive or elsewhere:
            for pid in watchers(job_dir):  # one that was stopped would not see that it is to end the job
                processes.send(pid, signal.SIGCONT)
            return
        deadline = time.monotonic() + _KILL_SECONDS
        while (left := survivors(job_dir)) and time.monotonic() < deadline:
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            time.sleep(0.02)
        containment.end(str(job_dir))

    def delete(self, handle: JobHandle) -> None:
        """Make sure that nothing of the job runs; all there is lies in its own directory (see Backend)."""
        if is_locked(self._job_dir(handle) / files.LOCK):
            raise BackendError(f"{handle.path} still runs", f"end it first: jobsubmit cancel {handle.path}")
        if left := survivors(self._job_dir(handle)):
            pids = ", ".join(map(str, left))
            raise BackendError(f"processes of it still run ({pids})", f"end them: jobsubmit cancel {handle.path}")
        containment.end(str(self._job_dir(handle)))

    def _job_dir(self, handle: JobHandle) -> Path:
        job_dir = self.settings.job_dir(handle.path)
        if "/" in handle.path or handle.path in ("", ".", "..") or not job_dir.is_dir():
            raise JobNotFoundError(f"{handle}: there is no such job on this machine", "`jobsubmit list` shows all")
        return job_dir


def _is_over(told: Mapping[str, Any]) -> bool:
    return bool(told) and told["state"] in State.__members__ and State(told["state"]).is_final


def _lost(job_dir: Path) -> JobStatus:
    message = "the processes that watched the job are gone"
    if left := survivors(job_dir):
        message += f", and processes of it still run ({', '.join(map(str, left))}): jobsubmit cancel {job_dir.name}"
    return JobStatus(State.LOST, "SUPERVISOR_DIED", message)


def _python_folder(*, needs_torch: bool) -> str:
    """Return the folder of the `python` that nodes shall run: ours if torch is installed beside us, else PATH's."""
    ours = Path(sys.executable).parent
    if importlib.util.find_spec("torch") is not None and (ours / "python").exists():
        return str(ours)
    python = shutil.which("python")
    if python is None:
        raise BackendError("there is no `python` on PATH", "activate the environment your training runs in")
    if needs_torch and subprocess.run([python, "-I", "-c", _FINDS_TORCH], check=False).returncode != 0:
        raise BackendError(
            f"{python} has no torch, and the launcher is part of torch",
            "activate the environment your training runs in, or: pip install 'jobsubmit[train]'",
        )
    return str(Path(python).parent)
