"""Outlive the supervisor: whatever happens to it, nothing of the job stays behind and the status tells the truth."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
import traceback

from . import files, processes
from .supervisor import Supervisor

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Read the order from standard input, take the job's lock, say `ready`, and see the job through."""
    job_dir = sys.argv[1]
    order = json.load(sys.stdin)
    lock = os.open(os.path.join(job_dir, files.LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("the job is running already")
    processes.adopt_orphans()
    keeper = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        _supervise(job_dir, order, keeper)
    _let_go_of_client()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, wait_status = os.waitpid(supervisor, 0)
    processes.kill_all()
    status = files.read_status(job_dir)
    if "ended" not in status:
        message = "the process that watched the job died ({})".format(_spelled(wait_status))
        status.update(state="LOST", reason="SUPERVISOR_DIED", message=message, ended=time.time())
        files.append_event(job_dir, "end", state="LOST", reason="SUPERVISOR_DIED")
        files.write_status(job_dir, status)


def _supervise(job_dir: str, order: dict[str, Any], keeper: int) -> None:
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != keeper:
        os._exit(1)
    processes.adopt_orphans()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        supervisor = Supervisor(job_dir, order)
        supervisor.prepare()
        os.write(1, b"ready\n")
        _let_go_of_client()
        supervisor.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _let_go_of_client() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


def _spelled(wait_status: int) -> str:
    if os.WIFSIGNALED(wait_status):
        return "signal %d" % os.WTERMSIG(wait_status)
    return "exit code %d, see %s" % (os.WEXITSTATUS(wait_status), files.GANG_LOG)
