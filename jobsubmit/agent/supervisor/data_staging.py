"""Copy data between a job's directories and its stores, in a process that has the client's libraries, or our own."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from contextlib import suppress

from .. import processes
from ..isolated_python import agent_command
from ..locks import INPUT_LOCK
from .job import Job

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from ..data.carry import Load
    from ..protocol import DataAccess

CARRIER = "data.carry"  # the module that copies data
_POLL_SECONDS = 0.05


def start_carrier(job: Job, what: str) -> subprocess.Popen[bytes]:
    """Start to copy `inputs` or `outputs`; messages about it go to the log of the first node here."""
    access = job.assignment.get("data")
    if access is not None:
        return _start_own(job, what, access)
    folder = job.assignment["client_folder"]  # relative paths in the environment are meant from there
    return job.start(
        [*job.assignment["data_staging"], what, job.dir],
        0,
        is_ours=True,
        cwd=folder if os.path.isdir(folder) else job.dir,
    )


def _start_own(job: Job, what: str, access: DataAccess) -> subprocess.Popen[bytes]:
    carrier = job.start(agent_command(CARRIER), job.nodes[0], is_ours=True, stdin=subprocess.PIPE, cwd=job.dir)
    remote = [mount for mount in job.request["mounts"] if "://" in mount["uri"]]
    load: Load = {
        "what": what,
        "access": access,
        "mounts": [{**mount, "path": job.environments.mount_path(mount)} for mount in remote],
        "checkpoints_of": job.request["checkpoints_of"],
        "cache": job.assignment.get("cache", ""),
        "known": os.path.join(job.shared.path, "data.jsonl"),
    }
    assert carrier.stdin
    with suppress(BrokenPipeError), carrier.stdin as pipe:  # its log says why it would not read
        pipe.write(json.dumps(load).encode())
    return carrier


def hold_inputs(job: Job) -> None:
    """Lock the cached copies that this node reads, until it has ended: others must not make room with them."""
    for mount in job.request["mounts"]:
        path = job.environments.mount_path(mount)
        if job.assignment.get("data") and mount["kind"] == "input" and os.path.islink(path):
            job.locks.append(os.open(os.readlink(path) + INPUT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fcntl.flock(job.locks[-1], fcntl.LOCK_SH)


class Outputs:
    """Upload the outputs of a job: at intervals, and each time its processes have ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        pauses = [mount["every"] for mount in job.request["mounts"] if mount["every"]]
        self.every = min(pauses) if pauses else 0
        self.due = time.monotonic() + self.every
        self.running: subprocess.Popen[bytes] | None = None

    def poll(self) -> None:
        """Start an upload if one is due and none is running."""
        if self.running is not None and self.running.poll() is not None:
            self.running = None
        if self.every and self.running is None and time.monotonic() >= self.due:
            self.due = time.monotonic() + self.every
            self.running = start_carrier(self.job, "outputs")

    def flush(self) -> bool:
        """Upload now; return whether it succeeded. A further cancellation of the job stops the upload."""
        if not self.every:
            return True
        asked = self._asked()
        if self.running is not None:
            self._wait(self.running, asked)
        self.running = None
        return self._wait(start_carrier(self.job, "outputs"), asked)

    def pids(self) -> list[int]:
        """Return the pid of a running upload, which does not belong to the training."""
        return [self.running.pid] if self.running is not None else []

    def _wait(self, carrying: subprocess.Popen[bytes], asked: float) -> bool:
        while carrying.poll() is None:
            if self._asked() > asked:
                processes.send(carrying.pid, 9)
            self.job.note_logs()
            time.sleep(_POLL_SECONDS)
        return carrying.returncode == 0

    def _asked(self) -> float:
        try:
            return os.stat(self.job.shared.cancel).st_mtime
        except FileNotFoundError:
            return 0.0
