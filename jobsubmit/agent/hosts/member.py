"""The part of one host in a job: take the host, run a node of an attempt, stop it, and say how it ended."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback

from .. import fetch, node_contract as contract, processes, run, status_file
from ..atomic_write import make_private, replace_file
from ..job_directory import USUAL_ROOT, JobDirectory
from ..machine import addresses
from ..preflight import gpus
from ..protocol import FetchOrder, HostAssignment, HostMessage, NodeStatus
from ..recovery.outcome import FETCH_FAILED
from ..supervisor.data_staging import CARRIER
from ..supervisor.job import USUAL_GRACE_SECONDS
from . import code_cache
from .host_queue import HostQueue

LOST_GRACE_SECONDS = 4.0  # for a node that must end because other hosts are lost
_LOOK_SECONDS = 0.05
_KILL_SECONDS = 10.0  # beyond the grace of a node, until its agent is killed
_REAP_SECONDS = 10.0  # for what a node leaves


class Member:
    """This host, as host 0 sees it; `handle` takes the messages of host 0, `poll` returns the answers."""

    def __init__(self, root: str, folder: str, assignment: HostAssignment, address: str) -> None:
        self.root, self.folder, self.assignment, self.address = root, folder, assignment, address
        self.interface = assignment["interface"] or addresses.interface_of(address)
        self.queue = HostQueue(os.path.expanduser(USUAL_ROOT), assignment["job_id"], assignment["submitted"])
        self.answers = []  # type: list[HostMessage]
        self.pid = 0  # of the process that runs a node
        self.running: HostMessage = {}
        self.kill_at = self.reap_until = 0.0
        self.wait_status: int | None = None  # of that process, once it has ended

    def handle(self, message: HostMessage) -> None:
        """Do what a message asks for."""
        what = message["what"]
        if what == "take":
            self._take()
        elif what == "release":
            self.queue.release()
        elif what == "begin":
            if message.get("mark"):
                self.answers.append({"what": "looked", "is_seen": os.path.exists(message["mark"])})
            self._begin(message)
        elif what == "stop":
            self.stop(message.get("grace"))
        elif what == "cancel":
            status_file.ask_cancel(self.folder, message.get("grace"))

    def poll(self) -> list[HostMessage]:
        """Return the answers since the last call."""
        if self.pid:
            self._look_at_node()
        answers, self.answers = self.answers, []
        return answers

    def why_cut_off(self) -> str:
        """Return why this host reaches no other host, if that is known; else an empty string."""
        if not self.interface or addresses.has_link(self.interface):
            return ""
        name = self.assignment["hosts"][self.assignment["index"]]
        return "%s lost its network: its interface %s has no connection" % (name, self.interface)

    def _take(self) -> None:
        busy = self.queue.take()
        if busy:
            self.answers.append({"what": "busy", "text": busy})
            return
        used = [] if self.assignment["share_gpus"] else gpus.find_users()
        if used:
            self.queue.release()
            self.answers.append({"what": "busy", "text": used[0]})
            return
        self.answers.append({"what": "taken", "text": self.queue.died})

    def _begin(self, message: HostMessage) -> None:
        """Start a process that runs a node; it ends when this process ends."""
        self.running = message
        self.kill_at = 0.0
        sys.stdout.flush()
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            processes.die_with_parent(signal.SIGTERM)
            code = 1
            try:
                if os.getppid() == agent:
                    self._run(message)
                    code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)

    def _run(self, message: HostMessage) -> None:
        os.environ.update(
            {
                contract.HOSTS: ",".join(message["addresses"]),
                contract.NODE_INDEX: str(message["node"]),
                contract.PORT: str(message["port"]),
                contract.RESTART_COUNT: str(message["attempt"]),
            }
        )
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if self.interface else ():
            os.environ.setdefault(variable, self.interface)  # the env of the job file replaces it
        request = {**self.assignment["request"], "timeout": message["timeout"]}
        os.environ.update(self.assignment["secrets"])
        data, cache = self.assignment["data"], os.path.join(self.root, "cache", "inputs")
        outcome = run.run_node(self.folder, request, self._kept_order(), None, data, cache)  # type: ignore[arg-type] # another timeout
        if outcome.reason == FETCH_FAILED:
            code_cache.forget(self.root, self.assignment["order"])
        code_cache.trim(self.root, code_cache.MOST_BYTES)

    def _kept_order(self) -> FetchOrder:
        """Return where the code is on this host; what cannot be fetched now, the node tries again and reports."""
        order = self.assignment["order"]
        try:
            return code_cache.fill(self.root, order)
        except fetch.fetch_errors():
            return order

    def _look_at_node(self) -> None:
        if self.wait_status is None:
            pid, wait_status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                self._hurry()
                return
            self.wait_status, self.reap_until = wait_status, time.monotonic() + _REAP_SECONDS
        for left in processes.find_descendants():  # this process has adopted them
            processes.send(left, signal.SIGKILL)
        if processes.reap() and time.monotonic() < self.reap_until:
            return
        attempt, node = self.running["attempt"], self.running["node"]
        job_dir = JobDirectory(self.folder).node_of(attempt, node).path
        status = status_file.read_status(job_dir)
        if status is None or "ended" not in status:
            status = self._died(status, self.wait_status)
            make_private(job_dir)
            status_file.write_status(job_dir, status)
        self.pid, self.wait_status = 0, None
        self.answers.append({"what": "ended", "attempt": attempt, "node": node, "status": status})

    def _hurry(self) -> None:
        """End a node that was cancelled before it has begun, and one that does not end although it was asked to.

        A node that uploads its data may take its time.
        """
        job_dir = JobDirectory(self.folder).node_of(self.running["attempt"], self.running["node"]).path
        if status_file.cancel_grace(self.folder, 0.0) is not None and not os.path.exists(JobDirectory(job_dir).status):
            processes.send(self.pid, signal.SIGTERM)
        if self.kill_at and time.monotonic() > self.kill_at and not _is_copying():
            processes.send(self.pid, signal.SIGKILL)

    def _died(self, status: NodeStatus | None, wait_status: int) -> NodeStatus:
        host = self.assignment["hosts"][self.assignment["index"]]
        how = "signal %d" % os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else "an error"
        text = "the agent of node %d on %s died (%s)" % (self.running["node"], host, how)
        died: NodeStatus = {"state": "FAILED", "reason": "NODE_FAILED", "message": text, "ended": time.time()}
        if status_file.cancel_grace(self.folder, 0.0) is not None:
            died.update({"state": "CANCELLED", "reason": "", "message": ""})
        elif self.kill_at:
            died.update({"state": "CANCELLED", "reason": status_file.STOPPED_BY_PLATFORM})
        return {**(status or status_file.NO_STATUS), **died, "failure": None}

    def stop(self, grace: float | None) -> None:
        """Ask the running node to end, and give its processes a grace time in seconds instead of the usual one."""
        if not self.pid:
            return
        if grace is not None:
            job_dir = JobDirectory(self.folder).node_of(self.running["attempt"], self.running["node"])
            if os.path.isdir(job_dir.path):
                replace_file(job_dir.stop, repr(grace), is_durable=False)
        else:
            grace = max(USUAL_GRACE_SECONDS, status_file.cancel_grace(self.folder, USUAL_GRACE_SECONDS) or 0.0)
        processes.send(self.pid, signal.SIGCONT)
        processes.send(self.pid, signal.SIGTERM)
        self.kill_at = time.monotonic() + grace + _KILL_SECONDS

    def stop_now(self) -> None:
        """End the running node, because other hosts are lost."""
        self.stop(LOST_GRACE_SECONDS)
        while self.pid:
            self._look_at_node()
            time.sleep(_LOOK_SECONDS)


def _is_copying() -> bool:
    """Return whether a process below this one copies data to or from a bucket."""
    for pid in processes.find_descendants():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as stream:
                if CARRIER.encode() in stream.read().split(b"\0"):
                    return True
        except OSError:
            continue
    return False
