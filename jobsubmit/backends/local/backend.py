"""The local backend: hands a job to the gang of processes that runs it, and reads what they write."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobsubmit.backends import Delivery, Failure, JobHandle, JobStatus, LogLine, Request, State, Step
from jobsubmit.backends.local.gang import files
from jobsubmit.backends.local.logs import LogReader
from jobsubmit.diagnosis import diagnose
from jobsubmit.errors import BackendError, JobNotFoundError
from jobsubmit.locks import is_locked
from jobsubmit.plan import LaunchPlan
from jobsubmit.render import Script
from jobsubmit.settings import Settings
from jobsubmit.spec.model import Layout
from jobsubmit.transfer.reference import CodeRef

_DOCUMENT = "local.json"
_EXPLAINED_LINES, _EXPLAINED_BYTES = 400, 1 << 16
_FOLLOW_SECONDS = 0.1
_KEEPER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gang.keeper import main; main()"


class LocalBackend:
    """Run each job as a group of processes of its own, below the state directory."""

    layout: Layout = "archive"
    ignores_platform_fields = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        """Return the job as one JSON document (see Backend)."""
        document = {
            "job_id": job_id,
            "name": plan.name,
            "mode": plan.mode,
            "nodes": plan.nodes,
            "nproc_per_node": plan.nproc_per_node,
            "code": {"uri": code.uri, "layout": code.layout, "digest": code.digest, "name": code.name},
            "script": {"sha256": script.sha256},
            "env": dict(plan.env),
            "secrets": {name: f"env:{source}" for name, source in plan.secrets},
            "timeout": plan.timeout,
            # A start command of the user's own may restart its ranks: there only the end of the command counts.
            "rank_exit_ends_job": plan.command is None,
        }
        return Request(job_id, {_DOCUMENT: json.dumps(document, ensure_ascii=False, indent=2) + "\n"})

    def preflight(self, plan: LaunchPlan) -> None:
        """Raise BackendError where this machine cannot start the job (see Backend)."""
        if shutil.which("bash") is None:
            raise BackendError("there is no bash on PATH", "install bash: the start script needs it")
        _python_folder(needs_torch=plan.command is None and plan.mode != "spawn")

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        """Start the gang and return once it has its port and its lock (see Backend)."""
        document = json.loads(request.documents[_DOCUMENT])
        order = {
            "request": document,
            "order": delivery.order,
            "secrets": dict(delivery.secrets),
            "python_folder": _python_folder(needs_torch=False),
        }
        job_dir = self.settings.job_dir(request.job_id)
        job_dir.mkdir(parents=True, exist_ok=True)
        if files.read_status(str(job_dir)):
            raise BackendError(f"{request.job_id} was submitted before", "give another --job-id, or none")
        with (job_dir / files.GANG_LOG).open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, str(Path(__file__).parent), str(job_dir)],
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
            problem = " ".join(files.last_lines(str(job_dir / files.GANG_LOG), 1)) or "it said nothing"
            raise BackendError(f"the job could not be started: {problem}", f"see {job_dir / files.GANG_LOG}")
        return JobHandle("local", request.job_id)

    def status(self, handle: JobHandle) -> JobStatus:
        """Return what is true now (see Backend): a job whose keeper is dead is LOST, never RUNNING for ever."""
        job_dir = self._job_dir(handle)
        told = files.read_status(str(job_dir))
        if told and State(told["state"]).is_final:
            return _status(told, job_dir)
        if not is_locked(job_dir / files.LOCK):
            told = files.read_status(str(job_dir))  # it may have ended between the two looks
            if told and State(told["state"]).is_final:
                return _status(told, job_dir)
            return JobStatus(State.LOST, "SUPERVISOR_DIED", "the processes that watched the job are gone")
        if not told:
            return JobStatus(State.PENDING)
        if (job_dir / files.CANCEL).exists():
            told = {**told, "state": State.CANCELLING}
        return _status(told, job_dir)

    def logs(
        self, handle: JobHandle, *, follow: bool = False, node: int | None = None, rank: int | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of the nodes' and ranks' files (see Backend)."""
        job_dir = self._job_dir(handle)
        reader = LogReader(job_dir, node, rank)
        while follow and not self.status(handle).state.is_final:
            yield from reader.new_lines()
            time.sleep(_FOLLOW_SECONDS)
        yield from reader.new_lines()
        yield from reader.rest()

    def cancel(self, handle: JobHandle) -> None:
        """Ask the supervisor to end the job (see Backend)."""
        (self._job_dir(handle) / files.CANCEL).touch()

    def _job_dir(self, handle: JobHandle) -> Path:
        job_dir = self.settings.job_dir(handle.path)
        if "/" in handle.path or not job_dir.is_dir():
            raise JobNotFoundError(f"{handle}: there is no such job on this machine", "`jobsubmit list` shows all")
        return job_dir


def _status(told: dict[str, Any], job_dir: Path) -> JobStatus:
    return JobStatus(
        State(told["state"]),
        told["reason"],
        told["message"],
        _failure(told["failure"], job_dir) if told.get("failure") else None,
        _steps(job_dir),
        {name: value for name, value in told.items() if name in ("started", "ended", "port", "addresses", "notes")},
    )


def _failure(told: dict[str, Any], job_dir: Path) -> Failure:
    """Return the first failure, explained by its own last words: what others said may be about something else."""
    kind, _, number = told["quoted"].partition(" ")
    log = (files.rank_log if kind == "rank" else files.node_log)(str(job_dir), int(number))
    known = diagnose(files.last_lines(log, _EXPLAINED_LINES, _EXPLAINED_BYTES), signal=told["signal"])
    return Failure(**{**told, "last_lines": tuple(told["last_lines"])}, **(known._asdict() if known else {}))


def _steps(job_dir: Path) -> tuple[Step, ...]:
    found: dict[str, Step] = {}
    for event in files.EventReader(str(job_dir)).new():
        if event["event"] == "step" and event["edge"] == "start":
            found[event["step"]] = Step(event["step"], event["t"])
        elif event["event"] == "step":
            found[event["step"]] = replace(found[event["step"]], end=event["t"])
    return tuple(found.values())


def _python_folder(*, needs_torch: bool) -> str:
    """Return the folder of the `python` that nodes shall run: ours if torch is installed beside us, else PATH's."""
    ours = Path(sys.executable).parent
    if importlib.util.find_spec("torch") is not None and (ours / "python").exists():
        return str(ours)
    python = shutil.which("python")
    if python is None:
        raise BackendError("there is no `python` on PATH", "activate the environment your training runs in")
    finds = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if needs_torch and subprocess.run([python, "-c", finds], check=False).returncode != 0:
        raise BackendError(
            f"{python} has no torch, and the launcher is part of torch",
            "activate the environment your training runs in, or: pip install 'jobsubmit[train]'",
        )
    return str(Path(python).parent)
