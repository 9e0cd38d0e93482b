"""The guardian outlives the supervisor: it ends the processes that are left, and completes the status."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
import traceback

from .. import atomic_write, events, processes, status_file
from ..job_directory import JobDirectory
from ..protocol import Assignment, NodeStatus
from . import process_group
from .job import USUAL_GRACE_SECONDS
from .supervisor import Supervisor

_LOOK_SECONDS = 0.5
_LATE_SECONDS = 20.0  # beyond the grace of a cancelled job, until a supervisor that shows no sign of life is killed


def main() -> None:
    """Read the assignment from standard input, take the job's lock, print `ready`, and run the job to its end."""
    job_dir = sys.argv[1]
    assignment = json.load(sys.stdin)
    assignment["umask"] = os.umask(0o077)  # of the user's processes; what we write ourselves is for the owner only
    lock = os.open(JobDirectory(job_dir).lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("the job is already running")
    except OSError:
        pass  # a file system without locks: the time stamp of the file shows that we live
    processes.adopt_orphans()
    guardian = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        _supervise(job_dir, assignment, guardian)
    _let_go_of_client()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    was_late, wait_status = _wait_for(supervisor, job_dir)
    processes.kill_all()
    process_group.end(job_dir)
    _write_end(job_dir, was_late, wait_status)


def _wait_for(supervisor: int, job_dir: str) -> tuple[bool, int]:
    """Wait for the supervisor; return whether it was killed because it did not cancel the job, and its wait status.

    A supervisor that was stopped by a signal is continued when its job is cancelled.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    beat, alive_at = 0, time.monotonic()
    while True:
        pid, wait_status = os.waitpid(supervisor, os.WNOHANG)
        if pid:
            return False, wait_status
        grace = status_file.cancel_grace(job_dir, USUAL_GRACE_SECONDS)
        if grace is None or _beat_of(job_dir) != beat:
            beat, alive_at = _beat_of(job_dir), time.monotonic()
        else:
            processes.send(supervisor, signal.SIGCONT)
            if time.monotonic() - alive_at > grace + _LATE_SECONDS:
                processes.send(supervisor, signal.SIGKILL)
                return True, os.waitpid(supervisor, 0)[1]
        if hasattr(signal, "sigtimedwait"):
            signal.sigtimedwait([signal.SIGCHLD], _LOOK_SECONDS)
        else:  # macOS
            time.sleep(_LOOK_SECONDS / 10)


def _beat_of(job_dir: str) -> int:
    """Return the time stamp that a running supervisor updates periodically."""
    try:
        return os.stat(JobDirectory(job_dir).lock).st_mtime_ns
    except OSError:
        return 0


def _write_end(job_dir: str, was_late: bool, wait_status: int) -> None:
    """Write the end of the job, if its supervisor has not; if the disk is full, wait for room."""
    before = status_file.read_status(job_dir)
    if before and "ended" in before:
        return
    state, reason = ("CANCELLED", "") if was_late else ("LOST", "SUPERVISOR_DIED")
    message = "the supervisor of the job %s" % (
        "did not end it, and was killed" if was_late else "died (%s)" % _spelled(wait_status)
    )
    empty: NodeStatus = {"state": state, "reason": reason, "message": message}
    status: NodeStatus = {**(before or empty), **empty, "ended": time.time()}
    events.append_event(job_dir, "end", state=state, reason=reason)
    atomic_write.when_there_is_room(lambda: status_file.write_status(job_dir, status))
    atomic_write.when_there_is_room(lambda: events.write_events(job_dir))


def _supervise(job_dir: str, assignment: Assignment, guardian: int) -> None:
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != guardian:
        os._exit(1)
    processes.adopt_orphans()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process_group.enter(job_dir)
        supervisor = Supervisor(job_dir, assignment)
        supervisor.job.prepare()
    except BaseException as error:
        os.write(1, ("%s\n" % error).encode("utf-8", "replace"))
        traceback.print_exc()
        os._exit(1)
    os.write(1, b"ready\n")
    _let_go_of_client()
    try:
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
    return "exit code %d, see %s" % (os.WEXITSTATUS(wait_status), os.path.basename(JobDirectory("").agent_log))
