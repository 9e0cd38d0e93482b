"""One attempt of a job: start every node, and watch all until they have succeeded or something fails."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping

from .. import events, job_directory, processes, status_file
from ..logs.reading import last_lines
from ..machine.sampler import MachineSampler
from ..protocol import Failure, Standstill, StruckFault
from ..recovery import first_failure, oom_detector, rank_failure
from ..recovery.elastic import Membership
from ..recovery.first_failure import ProcessFailure, are_alike
from ..recovery.outcome import Outcome
from ..recovery.step_parser import BadLoss, StepParser
from . import hang_detector, setup, standstill
from .data_staging import Outputs
from .faults import Faults
from .job import Job

# A victim's exception comes before its cause is collected by its launcher: wait that long for the cause. Launchers look
# every 0.1 s; those of torch 2.1 and older every 5 s.
SETTLE_SECONDS = 0.2
SETTLE_UNCLEAR_SECONDS = 5.5
_LATECOMER_SECONDS = 10.0
SETUP_FAILED = 79  # the exit code of a start script whose setup failed
_UNEXPLAINED = "a process failed"
_OWN_LINES = 10  # at most, of a start script
_SUSPICIOUS = 0.5  # of the silence that is a hang


class Node:
    """One emulated node; its leader is its start script, which becomes the launcher."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.leader: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None
        self.starts_at = time.monotonic()  # or starts again: it was lost


class Attempt:
    """Run all nodes once."""

    def __init__(self, job: Job, number: int, faults: Faults, outputs: Outputs, progress: StepParser) -> None:
        self.job, self.number = job, number
        self.faults, self.outputs, self.progress = faults, outputs, progress
        self.nodes = [Node(index) for index in job.nodes]
        self.table = first_failure.RankTable()
        self.members = Membership(job, self.table, progress)
        self.ranks_count = job.request["rank_exit_ends_job"] and not self.members.is_elastic
        self.watch = hang_detector.HangWatch(job.request["hang_after"])
        self.has_stacks = False  # of the silence that lasts now
        self.memory = oom_detector.OomDetector()
        self.machine = MachineSampler(job.dir, job.nodes[0], number)
        self.unclear_since: float | None = None
        self.ready_since: float | None = None
        self.first_ended_at: float | None = None
        self.failed_at: float | None = None  # when the first failure showed, in seconds since the epoch
        self.looked_at = 0.0  # at the steps that the logs tell
        self.struck: list[StruckFault] = []

    def run(self) -> Outcome:
        """Return the outcome; raises Outcome if the whole job must end. Processes may still run afterwards."""
        for node in self.nodes:
            node.starts_at += self.faults.delay_of(node.index)
        if not self.job.is_command:
            self.job.phases.start("rendezvous")
        while True:
            outcome = self._look()
            if outcome is not None:
                return outcome
            self.job.pause()

    def _look(self) -> Outcome | None:
        for node in self.nodes:
            if node.leader is not None and node.exit_code is None:
                self._watch_leader(node)
            elif node.leader is None and time.monotonic() >= node.starts_at:
                self._start_leader(node)
        self._take_events()
        self._note_progress()
        self._strike()
        self.outputs.poll()
        self._sample_machine()
        return self._success() or self._failure() or self._hang()

    # ── nodes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_leader(self, node: Node) -> None:
        script = setup.prove_script(self.job, node.index)
        environment = self.job.environments.of(node.index, self.number)
        try:
            node.leader = self.job.start(["bash", script], node.index, env=environment)
        except OSError as error:
            raise Outcome("FAILED", "START_FAILED", "node %d could not start: %s" % (node.index, error)) from error
        events.append_event(
            self.job.dir,
            "node_start",
            node=node.index,
            pid=node.leader.pid,
            script=self.job.request["script"]["sha256"],
            attempt=self.number,
        )

    def _watch_leader(self, node: Node) -> None:
        assert node.leader
        node.exit_code = node.leader.poll()
        if node.exit_code is None:
            return
        events.append_event(self.job.dir, "node_exit", node=node.index, code=node.exit_code, attempt=self.number)
        if node.exit_code == 0:
            self.first_ended_at = self.first_ended_at or time.monotonic()
        alive = sum(other.leader is not None and other.exit_code is None for other in self.nodes)
        if self.first_ended_at and not self.table.ranks_of(node.index) and self.members.is_elastic:
            return  # it came back when the others had done the work: whatever it says, it is not needed
        if self.members.can_lose(node.index, node.exit_code, alive):
            backoff = self.members.lose(node.index, self.struck.pop() if self.struck else None)
            node.leader, node.exit_code, node.starts_at = None, None, time.monotonic() + backoff
        else:
            self.table.leader_exited(node.index, node.exit_code, time.time())

    # ── what the processes tell ─────────────────────────────────────────────────────────────────────────────────

    def _take_events(self) -> None:
        for event in self.job.events.new():
            self.table.take(event)
            if event["event"] == "rank_start":
                self.job.node_of_rank[event["rank"]] = event["node"]
                self.members.take(event)

    def _note_progress(self) -> None:
        phases = self.job.phases
        expected = self.members.world or len(self.nodes) * self.job.environments.nproc
        has_started = bool(self.table.ranks)
        if self.job.is_command and all(node.leader is not None for node in self.nodes):
            has_started = True
            phases.start("first_output")
            self.ready_since = self.ready_since or time.monotonic()
        if has_started and self.job.status["state"] != "RUNNING":
            self.job.write_status(state="RUNNING", message="")
        if len(self.table.ranks) >= expected and phases.end("rendezvous"):
            self.ready_since = time.monotonic()
            phases.start("first_output")
        has_grown = self.job.logs.grown_at > self.looked_at
        told_step = (has_grown or bool(self.faults.waiting)) and self.progress.look(
            self.job.sources()
        )  # a fault waits for its step
        self.looked_at = self.job.logs.grown_at
        if has_started and not phases.ended("first_output") and self._any_output():
            phases.end("first_output")
            phases.start("training")
        if self.progress.bad_loss is not None:
            self.job.add_note(_describe_bad_loss(self.progress.bad_loss))
        if told_step:
            self._note_recovery()
            self.members.note_training()

    def _sample_machine(self) -> None:
        """Record what the ranks use of the machine, or without ranks the nodes."""
        if not self.machine.is_due():
            return
        running = self.table.running()
        roots = {str(rank): pid for rank, pid in running.items()}
        nodes = {str(rank): self.table.ranks[rank].node for rank in running}
        if not roots and self.job.is_command:
            leaders = {"node %d" % node.index: node for node in self.nodes}
            roots = {name: node.leader.pid for name, node in leaders.items() if node.leader}
            nodes = {name: node.index for name, node in leaders.items()}
        self.machine.sample(roots, nodes)

    def _any_output(self) -> bool:
        logs = [
            self.job.files.log_of(rank.node, number, stream)
            for number, rank in self.table.ranks.items()
            for stream in job_directory.STREAMS
        ]
        if any(os.path.exists(log) and os.path.getsize(log) > self.job.sizes_before.get(log, 0) for log in logs):
            return True
        nodes = self.nodes if self.job.is_command else []
        return any(self._has_said_more_than_we(node.index) for node in nodes)

    def _has_said_more_than_we(self, node: int) -> bool:
        """Return whether a node's command has written a line; the lines of its start script do not count."""
        lines = last_lines(self.job.dir, node, None, _OWN_LINES, since=self.job.attempt_began)
        return any(not line.startswith("jobsubmit: ") for line in lines)

    def _note_recovery(self) -> None:
        """Note when training continued after a restart, and how many steps it had to repeat."""
        restarts = self.job.status["restarts"]
        if restarts and restarts[-1]["back_at"] is None:
            back = restarts[-1]
            back["back_at"] = time.time()
            if back["last_step"] is not None and self.progress.first is not None:
                back["steps_lost"] = max(0, back["last_step"] - self.progress.first + 1)
            self.job.write_status()

    def _strike(self) -> None:
        running = self.table.running()
        for fault in self.faults.due(self.progress.last, self.ready_since, self.table.ranks):
            leader = self.nodes[fault["number"]].leader if fault["target"] == "node" else None
            if self.faults.strike(fault, leader.pid if leader else None, running):
                self.struck.append({"text": fault["text"], "t": time.time()})
            else:
                self.job.add_note("the fault `%s` was not triggered: its target had already ended" % fault["text"])

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _success(self) -> Outcome | None:
        if all(node.exit_code == 0 for node in self.nodes):
            return Outcome("SUCCEEDED")
        if not self.members.is_elastic or self.first_ended_at is None or self.table.failures():
            return None
        others = [node for node in self.nodes if node.exit_code is None]
        waited = time.monotonic() - self.first_ended_at >= _LATECOMER_SECONDS
        if all(node.leader is None for node in others) or (waited and not self.table.running()):
            return Outcome("SUCCEEDED")
        return None

    def _failure(self) -> Outcome | None:
        failures = self.table.failures(ranks_count=self.ranks_count)
        if not failures:
            return None
        now = time.monotonic()
        self.unclear_since = self.unclear_since or now
        self.failed_at = self.failed_at or min(failure.t for failure in failures)
        waited = now - self.unclear_since
        if waited < self._settle_seconds(failures[0]):
            return None
        if waited < SETTLE_UNCLEAR_SECONDS and self._has_yet_to_say_why(failures[0]):
            return None
        for failure in failures:
            if failure.rank is not None:
                rank_failure.keep_error_file(self.job, self.table.ranks[failure.rank])
        return Outcome("FAILED", _UNEXPLAINED)

    def _settle_seconds(self, first: ProcessFailure) -> float:
        """Return how long to wait for a better explanation; it may come from a node of another machine."""
        if first.is_clear():
            return SETTLE_SECONDS
        elsewhere = self.job.scope.other_nodes_seconds
        return SETTLE_UNCLEAR_SECONDS + elsewhere if elsewhere or self.table.running() else SETTLE_SECONDS

    def _has_yet_to_say_why(self, first: ProcessFailure) -> bool:
        """Return whether a rank runs that has reported its exception, but not printed it: stopped now, it never would.

        torch prints it in one piece, after every other hook has seen it.
        """
        if first.rank not in self.table.running():
            return False
        rank = self.table.ranks[first.rank]
        if rank.exception is None or rank.ended_at:
            return False
        log = self.job.files.log_of(rank.node, rank.rank, "stderr")
        return not (os.path.exists(log) and os.path.getsize(log) > rank.exception.get("stderr_size", -1))

    def _hang(self) -> Outcome | None:
        if not self.watch.seconds:
            return None
        ended = self.table.succeeded()
        limit = min(self.watch.seconds, hang_detector.EXIT_SECONDS) if ended else self.watch.seconds
        others = {*self.outputs.pids(), *self.machine.pids()}
        if self.table.ranks:  # a launcher that waits for its ranks does so by looking, again and again
            others |= {node.leader.pid for node in self.nodes if node.leader}
        silence = self.watch.silent_for(
            self.job.logs.grown_at, lambda: set(processes.find_descendants()) - others - self._wait_in_nccl()
        )
        if silence < limit:
            self._suspect(silence, limit)
            return None
        self.failed_at = time.time() - silence
        return self._hanging(silence, ended)

    def _wait_in_nccl(self) -> set[int]:
        """Return the pids of the ranks that have waited in NCCL since the last look, and use CPU time for it."""
        running = self.table.running()
        standstills = standstill.read_standstills(self.job.dir, running)
        return {running[rank] for rank in standstill.find_waiting(standstills, self.watch.sampled_at)}

    def _suspect(self, silence: float, limit: float) -> None:
        """Keep the stacks early where others are on other machines: the first node that ends for a hang breaks them."""
        if silence < limit * _SUSPICIOUS:
            self.has_stacks = False
        elif self.job.scope.other_nodes_seconds and not self.has_stacks:
            hang_detector.dump_stacks(self.job.dir, self.table.running())
            self.has_stacks = True

    def keep_stacks(self) -> None:
        """Keep the stacks of ranks that have long written nothing: a node on another machine may have seen the hang."""
        is_silent = time.monotonic() - self.job.logs.grown_at >= self.watch.seconds * _SUSPICIOUS
        if self.watch.seconds and is_silent and not self.has_stacks:
            hang_detector.dump_stacks(self.job.dir, self.table.running())

    def _hanging(self, silence: float, ended: list[int]) -> Outcome:
        running = self.table.running()
        stacks = hang_detector.dump_stacks(self.job.dir, running)
        standstills = standstill.read_standstills(self.job.dir, running)
        places = _find_places(stacks, standstills)
        message = "no output and no CPU time for %d s" % silence
        if any(noted["waits"] for noted in standstills.values()):
            message = "no output for %d s, and no CPU time except to wait in NCCL" % silence
        if ended:
            message += ", after rank %d had ended with exit code 0" % ended[0]
        missing = standstill.find_missing_rank(standstills)
        odd = hang_detector.find_odd_one_out(places) if missing is None else missing
        if places:
            message += "; " + hang_detector.describe_places(places, odd, is_missing=missing is not None)
        if not stacks:
            return Outcome("FAILED", "HANG", message)
        rank = odd if odd in stacks else min(stacks)
        failure: Failure = {
            "node": self.table.ranks[rank].node,
            "rank": rank,
            "exit_code": None,
            "signal": None,
            "message": message,
            "quoted": "rank %d" % rank,
            "last_lines": [
                self.job.without_secrets(line) for line in hang_detector.main_thread(stacks[rank])[: rank_failure.LINES]
            ],
        }
        return Outcome("FAILED", "HANG", message, failure)

    def judge(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the first failure, from all events up to the end of the nodes."""
        for event in self.job.events.new():
            self.table.take(event)
        failures = self.table.failures()
        if outcome.reason == status_file.STOPPED_BY_PLATFORM and failures and not failures[0].was_told:
            outcome = Outcome("FAILED", _UNEXPLAINED)  # the engine came first: it saw a victim, or this failure
        if outcome.reason != _UNEXPLAINED:
            return outcome
        first, *others = failures
        # A launcher that ends with its ranks is no cause where one of them failed as a result.
        effect = (
            next((one for one in failures if one.is_victim), first) if first.is_leader and first.code > 0 else first
        )
        gone = self.table.ended_before(effect)
        if gone is not None:
            failure = rank_failure.report_early_end(self.job, gone, effect, self.progress.last_of.get(gone.rank))
            failure["victims"] = sorted(other.rank for other in failures if other.rank is not None)
            return Outcome("FAILED", "ENDED_EARLY", failure["message"], failure)
        failure = rank_failure.report_failure(self.job, first)
        alike = {o.rank for o in others if are_alike(o.evidence(), first.evidence())}
        failure["victims"] = sorted(o.rank for o in others if o.rank is not None and o.rank not in alike)
        failure["alike"] = sorted(rank for rank in alike if rank is not None)
        reason = "EXIT_CODE" if first.code > 0 else "SIGNAL"
        if first.rank is None and first.code == SETUP_FAILED and not self.table.ranks_of(first.node):
            reason, failure["message"] = "SETUP_FAILED", "node %d could not be set up" % first.node
        if first.rank is None and first.code == -signal.SIGKILL:
            reason = "NODE_FAILED"
        if first.code == -signal.SIGKILL and self.memory.has_struck():
            reason, failure["message"] = "OOM", failure["message"] + ", sent by the kernel because memory was full"
        if first.code < 0 and self.struck and reason != "OOM":
            failure["fault"] = self.struck[-1]["text"]
        failure["message"] += self._describe_wait(first.rank)
        return Outcome("FAILED", reason, failure["message"], failure)

    def _describe_wait(self, rank: int | None) -> str:
        """Return what a rank that failed was waiting for in NCCL, to follow how it failed; mostly nothing."""
        pids = {number: known.pid for number, known in self.table.ranks.items()}
        return (
            standstill.describe_wait(rank, standstill.read_standstills(self.job.dir, pids)) if rank is not None else ""
        )


def _find_places(
    stacks: Mapping[int, list[str]], standstills: Mapping[int, Standstill]
) -> dict[int, tuple[str, str, bool]]:
    """Return where each rank is, by its stack and by what it waits for in NCCL; see hang_detector.find_place."""
    places = {rank: hang_detector.find_place(lines) for rank, lines in stacks.items()}
    collectives = standstill.find_collectives(standstills)
    for rank, waits_in in standstill.describe_waits(standstills).items():
        called_at = hang_detector.find_call(collectives[rank]["frames"]) if rank in collectives else ""
        places[rank] = called_at or places.get(rank, ("", "", False))[0], waits_in, True
    return places


def _describe_bad_loss(bad: BadLoss) -> str:
    who = rank_failure.describe_process(bad.node, bad.rank)
    if bad.step is None:
        return "%s printed a loss of %s" % (who, bad.value)
    return "%s printed a loss of %s at step %d" % (who, bad.value, bad.step)
