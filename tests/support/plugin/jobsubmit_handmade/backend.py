"""A backend of another package: one agent a node, all on this machine, and a folder that they share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobsubmit.agent import status_file
from jobsubmit.agent.protocol import REQUEST
from jobsubmit.backends.models import EVERYTHING, JobHandle, JobStatus, LogLine, LogQuery, State
from jobsubmit.backends.protocol import Delivery, Request
from jobsubmit.backends.shared.agent_archive import agent_archive
from jobsubmit.backends.shared.agent_request import build_node_request
from jobsubmit.backends.shared.agent_status import parse_status
from jobsubmit.backends.shared.shared_folder import SharedFolder
from jobsubmit.bundle.model import Bundle
from jobsubmit.common.finding import Finding
from jobsubmit.config import Settings
from jobsubmit.errors import BackendError, JobNotFoundError
from jobsubmit.plan.launch_plan import LaunchPlan
from jobsubmit.plan.script import Script
from jobsubmit.spec.job_spec import Layout
from jobsubmit.transfer.code_ref import CodeRef
from jobsubmit_handmade.spec import HandmadeSpec

# Starts the nodes, and starts them again as long as the agent says so; whoever fails first ends the others.
RUNNER = """
import os, subprocess, sys, time
python, agent, folder, nodes = *sys.argv[1:4], int(sys.argv[4])
command, attempt = [python, "-I", "-S", agent], 0
while True:
    shared = {**os.environ, "JOBSUBMIT_RESTART_COUNT": str(attempt)}
    own = [{**shared, "VC_TASK_INDEX": str(node)} for node in range(nodes)]
    running = [subprocess.Popen([*command, "node", folder], env=each) for each in own]
    while any(process.poll() is None for process in running):
        if any(process.poll() for process in running):
            [process.terminate() for process in running]
            [process.wait() for process in running]
        time.sleep(0.05)
    if subprocess.call([*command, "outcome", folder], env=shared) != 75:
        break
    attempt += 1
open(os.path.join(folder, "over"), "w").close()
"""


class HandmadeBackend:
    """Run each job as processes of this machine, which outlive the client."""

    layout: Layout = "archive"
    ignored_because = "which uses this machine's Python"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def request(self, plan: LaunchPlan, script: Script, code: CodeRef, job_id: str) -> Request:
        document = json.dumps(build_node_request(plan, script, code, job_id))
        return Request(job_id, {REQUEST: document}, plan.backend)

    def limits(self, plan: LaunchPlan, request: Request, code: CodeRef, bundle: Bundle | None) -> Iterator[Finding]:
        return iter(())

    def preflight(self, plan: LaunchPlan, request: Request) -> None:
        """Find nothing missing."""

    def submit(self, request: Request, delivery: Delivery) -> JobHandle:
        folder = self.settings.state_dir / "handmade" / request.job_id
        if folder.exists():
            raise BackendError(f"--job-id {request.job_id} was submitted before", "give another")
        folder.mkdir(parents=True)
        (folder / REQUEST).write_text(request.documents[REQUEST])
        (folder / "agent.pyz").write_bytes(agent_archive())
        nodes = json.loads(request.documents[REQUEST])["nodes"]
        python = HandmadeSpec.of(request.backend).python or sys.executable
        environment = {
            **os.environ,
            **delivery.secrets,
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "VC_WORKER_HOSTS": ",".join(f"127.0.0.{101 + node}" for node in range(nodes)),
            "JOBSUBMIT_MASTER_PORT": str(10_000 + os.getpid() % 10_000),
            "JOBSUBMIT_ORDER": json.dumps(delivery.order),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        words = [sys.executable, "-c", RUNNER, python, str(folder / "agent.pyz"), str(folder), str(nodes)]
        with (folder / "engine.log").open("wb") as log:
            subprocess.Popen(words, env=environment, start_new_session=True, stdin=-3, stdout=log, stderr=log)
        return JobHandle("handmade", f"here/{request.job_id}")

    def find(self, job_id: str) -> JobHandle | None:
        handle = JobHandle("handmade", f"here/{job_id}")
        return handle if self._path(handle).is_dir() else None

    def status(self, handle: JobHandle) -> JobStatus:
        folder = self._folder(handle)
        attempt = max(folder.attempts(), default=0)
        statuses, outcome = folder.statuses(attempt), folder.outcome(attempt)
        if not (folder.directory / "over").exists():
            return JobStatus(State.CANCELLING if folder.is_cancel_asked() else State.RUNNING)
        if outcome is None:
            return JobStatus(State.LOST, "", "; ".join(folder.last_words(5)))
        return parse_status({**statuses[0], **outcome.as_status()}, folder.events())

    def logs(self, handle: JobHandle, query: LogQuery = EVERYTHING, *, follow: bool = False) -> Iterator[LogLine]:
        return self._folder(handle).lines(query, lambda: follow and self.status(handle).state.may_change)

    def events(self, handle: JobHandle) -> Iterator[Mapping[str, Any]]:
        return iter(self._folder(handle).events())

    def timings(self, handle: JobHandle) -> Iterator[bytes]:
        return self._folder(handle).timings()

    def stacks(self, handle: JobHandle) -> Mapping[int, bytes]:
        return self._folder(handle).stacks()

    def cancel(self, handle: JobHandle, grace: float | None = None) -> None:
        status_file.ask_cancel(str(self._folder(handle).directory), grace)

    def delete(self, handle: JobHandle) -> None:
        shutil.rmtree(self._folder(handle).directory)

    def _path(self, handle: JobHandle) -> Path:
        return self.settings.state_dir / "handmade" / handle.path.partition("/")[2]

    def _folder(self, handle: JobHandle) -> SharedFolder:
        if not self._path(handle).is_dir():
            raise JobNotFoundError(f"{handle}: there is no such job", "run `jobsubmit list` to see all jobs")
        return SharedFolder(self._path(handle))
