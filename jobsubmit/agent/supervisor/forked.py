"""A function of the agent that runs in a process of its own. A fork is ready at once; a new Python takes 40 ms."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress

from .. import processes

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOOK_SECONDS = 0.002


class ForkedProcess:
    """Runs a function whose result is the exit code; this process must have no threads.

    It is used like subprocess.Popen: pid, returncode, poll, wait. It ends when this process ends.
    """

    def __init__(self, function: Callable[[], int], stdout: int, stderr: int) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the handlers of this process are gone there
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                processes.die_with_parent(signal.SIGKILL)
                if os.getppid() == parent:
                    _begin(stdout, stderr)
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    code = function()
                    sys.stdout.flush()
                    sys.stderr.flush()
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _lead_group(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # collected with all other children
                pid, status = self.pid, 0
            if pid:
                self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit code; raise subprocess.TimeoutExpired if it still runs after so many seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_LOOK_SECONDS)
        assert self.returncode is not None
        return self.returncode


def _begin(stdout: int, stderr: int) -> None:
    _lead_group(0)
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)


def _lead_group(pid: int) -> None:
    """Make a process the leader of a group of its own; both sides do so, because either may be first."""
    with suppress(OSError):
        os.setpgid(pid, pid)
