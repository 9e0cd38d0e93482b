"""Start the nodes of a local job, watch them, end the gang at the first failure, and write down the result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from . import environment, files, network, processes, steps, verdict

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, BinaryIO

POLL_SECONDS = 0.03
# A victim's exception comes before its cause is collected by its launcher: wait that long for the cause. Launchers look
# every 0.1 s; those of torch 2.1 and older every 5 s.
SETTLE_SECONDS = 0.2
SETTLE_UNCLEAR_SECONDS = 5.5
FAILURE_GRACE_SECONDS = 3.0
CANCEL_GRACE_SECONDS = 10.0
REPORT_LINES = 20
SHORTEST_SECRET = 4  # a shorter one would strike out half of any text

_TO_BE_JUDGED = "a process failed"
_FETCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "node", "fetch.py")


class Node:
    """Hold one emulated node: first its fetch runs, then its start script (the leader)."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.fetcher: subprocess.Popen[bytes] | None = None
        self.leader: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None
        self.script_sha256 = ""


class Outcome(Exception):  # noqa: N818 - it ends the watch, for better or worse
    """End the watch: what became of the job."""

    def __init__(self, state: str, reason: str = "", message: str = "", failure: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.result = {"state": state, "reason": reason, "message": message, "failure": failure}


class Supervisor:
    """Run one job to its end."""

    def __init__(self, job_dir: str, order: dict[str, Any]) -> None:
        self.job_dir = job_dir
        self.request = order["request"]
        self.order = order
        self.nodes = [Node(index) for index in range(self.request["nodes"])]
        self.gang = verdict.Gang()
        self.events = files.EventReader(job_dir)
        self.unclear_since: float | None = None
        self.told_to_end = False
        self.steps = steps.Steps(job_dir)
        self.status: dict[str, Any] = {
            "state": "STARTING",
            "reason": "",
            "message": "",
            "failure": None,
            "started": time.time(),
        }

    def prepare(self) -> None:
        """Lease port and addresses; whatever fails here is the submitter's error."""
        port, self.lease = network.lease_port(self.request["job_id"])
        addresses = network.node_addresses(len(self.nodes))
        self.environments = environment.NodeEnvironments(self.order, self.job_dir, addresses, port)
        os.makedirs(os.path.join(self.job_dir, files.LOGS), exist_ok=True)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self.status.update(pid=os.getpid(), port=port, addresses=addresses, notes=self._notes())
        files.write_status(self.job_dir, self.status)

    def run(self) -> None:
        """Run the job; return nothing, for the result is in status.json."""
        self.steps.start("fetch")
        for node in self.nodes:
            self._start_fetch(node)
        try:
            while True:
                self._watch()
                time.sleep(POLL_SECONDS)
        except Outcome as outcome:
            self._finish(outcome.result)

    def _on_sigterm(self, number: int, frame: object) -> None:
        self.told_to_end = True

    def _notes(self) -> list[str]:
        gpus = environment.visible_gpus(os.environ)
        if gpus and not self.environments.gpus[0]:
            wanted = len(self.nodes) * (self.request["nproc_per_node"] or 1)
            return ["this machine shows %d GPUs, the job wants %d: it runs on CPUs" % (len(gpus), wanted)]
        return []

    # ── one look at everything ──────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        for node in self.nodes:
            if node.leader is None:
                self._watch_fetch(node)
            elif node.exit_code is None:
                self._watch_leader(node)
        for event in self.events.new():
            self.gang.take(event)
        self._note_progress()
        self._end_if_failed()
        if all(node.exit_code == 0 for node in self.nodes):
            raise Outcome("SUCCEEDED")
        if self.told_to_end:
            raise Outcome("LOST", "SUPERVISOR_ENDED", "the process that watched the job was told to end")
        if os.path.exists(os.path.join(self.job_dir, files.CANCEL)):
            raise Outcome("CANCELLED")
        timeout = self.request["timeout"]
        if timeout and time.time() - self.status["started"] > timeout:
            raise Outcome("FAILED", "TIMEOUT", "the job ran longer than its timeout of %d s" % timeout)

    def _start_fetch(self, node: Node) -> None:
        folder = self.environments.job_folder(node.index)
        os.makedirs(folder, exist_ok=True)
        fetch = [sys.executable, "-I", "-S", _FETCH, folder]
        with open(files.node_log(self.job_dir, node.index), "ab") as log:
            node.fetcher = self._popen(fetch, log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert node.fetcher.stdin
        try:
            node.fetcher.stdin.write(json.dumps(self.order["order"]).encode())
            node.fetcher.stdin.close()
        except BrokenPipeError:
            pass  # its own message and exit code say why

    def _watch_fetch(self, node: Node) -> None:
        assert node.fetcher and node.fetcher.stdout
        code = node.fetcher.poll()
        if code is None:
            return
        if code != 0:
            failure = self._failure({"node": node.index, "rank": None, "code": code})
            raise Outcome("FAILED", "FETCH_FAILED", "node %d could not fetch the code" % node.index, failure)
        with node.fetcher.stdout as told:
            node.script_sha256 = json.load(told)["script"]
        self._start_leader(node)
        if all(other.leader for other in self.nodes):
            self.steps.end("fetch")

    def _start_leader(self, node: Node) -> None:
        self.steps.start("rendezvous")
        script = os.path.join(self.environments.job_folder(node.index), "start.sh")
        with open(files.node_log(self.job_dir, node.index), "ab") as log:
            try:
                node.leader = self._popen(
                    ["bash", script], log, stdin=subprocess.DEVNULL, stdout=log, env=self.environments.of(node.index)
                )
            except OSError as error:
                raise Outcome("FAILED", "START_FAILED", "node %d could not start: %s" % (node.index, error)) from error
        files.append_event(self.job_dir, "node_start", node=node.index, pid=node.leader.pid, script=node.script_sha256)

    def _watch_leader(self, node: Node) -> None:
        assert node.leader
        node.exit_code = node.leader.poll()
        if node.exit_code is not None:
            files.append_event(self.job_dir, "node_exit", node=node.index, code=node.exit_code)
            self.gang.leader_exited(node.index, node.exit_code, time.time())

    def _popen(self, argv: list[str], log: BinaryIO, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, stderr=log, start_new_session=True, preexec_fn=_die_with_us, **options)

    def _note_progress(self) -> None:
        expected = len(self.nodes) * (self.request["nproc_per_node"] or 1)
        if self.gang.ranks and self.status["state"] == "STARTING":
            self._set_state("RUNNING")
        if len(self.gang.ranks) >= expected and self.steps.end("rendezvous"):
            self.steps.start("first_output")
        if self.gang.ranks and not self.steps.ended("first_output") and self._any_output():
            self.steps.end("first_output")
            self.steps.start("training")

    def _any_output(self) -> bool:
        logs = (files.rank_log(self.job_dir, rank) for rank in self.gang.ranks)
        return any(os.path.exists(log) and os.path.getsize(log) for log in logs)

    # ── the first failure ends the job ──────────────────────────────────────────────────────────────────────────

    def _end_if_failed(self) -> None:
        failures = self.gang.failures(ranks_count=self.request["rank_exit_ends_job"])
        if not failures:
            return
        now = time.monotonic()
        self.unclear_since = self.unclear_since or now
        first = failures[0]
        ranks_alive = any("exit" not in rank for rank in self.gang.ranks.values())
        clear = verdict.is_clear(first) or not ranks_alive
        if now - self.unclear_since >= (SETTLE_SECONDS if clear else SETTLE_UNCLEAR_SECONDS):
            raise Outcome("FAILED", _TO_BE_JUDGED)

    def _failure(self, first: dict[str, Any]) -> dict[str, Any]:
        """Return the report of the first failure; secrets are struck out of the quoted lines."""
        log, quoted = files.node_log(self.job_dir, first["node"]), "node %d" % first["node"]
        if first["rank"] is not None:
            own = files.rank_log(self.job_dir, first["rank"])
            if os.path.exists(own) and os.path.getsize(own):
                log, quoted = own, "rank %d" % first["rank"]
        code = first["code"]
        who = "node %d" % first["node"] + ("" if first["rank"] is None else ", rank %d" % first["rank"])
        how = "exit code %d" % code if code > 0 else _signal(-code)
        if first.get("crashed_by"):
            how += ", then %s while it shut down" % _signal(first["crashed_by"])
        return {
            "node": first["node"],
            "rank": first["rank"],
            "exit_code": code if code > 0 else None,
            "signal": -code if code < 0 else None,
            "message": "%s failed first: %s" % (who, how),
            "quoted": quoted,
            "last_lines": [self._without_secrets(line) for line in files.last_lines(log, REPORT_LINES)],
        }

    def _without_secrets(self, line: str) -> str:
        for name, value in self.order["secrets"].items():
            for part in value.splitlines():
                if len(part) >= SHORTEST_SECRET:
                    line = line.replace(part, "<%s>" % name)
        return line

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, result: dict[str, Any]) -> None:
        self.steps.end("training")
        self.steps.start("exit")
        if result["state"] == "CANCELLED":
            self._set_state("CANCELLING")
        self._stop(
            CANCEL_GRACE_SECONDS
            if result["state"] == "CANCELLED" or result["reason"] == "TIMEOUT"
            else FAILURE_GRACE_SECONDS
        )
        self.lease.close()
        if result["reason"] == _TO_BE_JUDGED:
            result = self._verdict()
        self.status.update(result, ended=time.time())
        self.steps.end("exit")
        files.append_event(self.job_dir, "end", state=result["state"], reason=result["reason"])
        files.write_status(self.job_dir, self.status)

    def _verdict(self) -> dict[str, Any]:
        """Judge who failed first, with what came in while the gang was stopping."""
        for event in self.events.new():
            self.gang.take(event)
        first = self.gang.failures(ranks_count=self.request["rank_exit_ends_job"])[0]
        failure = self._failure(first)
        return {
            "state": "FAILED",
            "reason": "EXIT_CODE" if first["code"] > 0 else "SIGNAL",
            "message": failure["message"],
            "failure": failure,
        }

    def _stop(self, grace: float) -> None:
        """SIGTERM once to every node, a grace time, then SIGKILL until the kernel knows no descendant of ours."""
        self.gang.stopped_at = time.time()
        started = [(node.leader or node.fetcher) for node in self.nodes]
        running = [process.pid for process in started if process and process.poll() is None]
        for leader in running:
            processes.send_group(leader, signal.SIGTERM)
        for orphan in set(processes.children()) - set(running):
            processes.send(orphan, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while processes.reap() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        processes.kill_all(known=[rank["pid"] for rank in self.gang.ranks.values()])

    def _set_state(self, state: str) -> None:
        self.status["state"] = state
        files.write_status(self.job_dir, self.status)


def _signal(number: int) -> str:
    return "signal %d (%s)" % (number, signal.Signals(number).name)


def _die_with_us() -> None:
    processes.die_with_parent(signal.SIGKILL)
