"""What becomes of a job, by what its processes do and when: a supervisor with scripted processes and its own clock."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from clock import Clock

from jobsubmit.agent import atomic_write, events, processes, status_file
from jobsubmit.agent.job_directory import LOCAL_REQUEST, JobDirectory
from jobsubmit.agent.logs import writing
from jobsubmit.agent.protocol import AgentRequest, Event, Fault, NodeStatus
from jobsubmit.agent.recovery import elastic
from jobsubmit.agent.supervisor import (
    attempt,
    data_staging,
    faults,
    hang_detector,
    job,
    node_scope,
    restart,
    setup,
    supervisor,
)
from jobsubmit.agent.supervisor.environment import NodeEnvironments
from jobsubmit.agent.supervisor.supervisor import Supervisor
from jobsubmit.backends.registry import open_backend
from jobsubmit.backends.shared.agent_status import parse_status
from jobsubmit.config import load_settings
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.script import render
from jobsubmit.spec.loader import load_mapping
from jobsubmit.transfer.code_ref import CodeRef

NODES = NPROC = 2
TIMED = (atomic_write, attempt, data_staging, elastic, events, faults, hang_detector, job, writing, restart, supervisor)


class Leader:
    """Stand in for the process of a node's start script."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class World:
    """Run a supervisor whose processes do what a script says, by seconds since the start of each attempt."""

    def __init__(self, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        self.folder, self.clock = folder, clock
        self.scripts: list[list[tuple[float, Callable[[], Any]]]] = []
        self.leaders: dict[int, Leader] = {}
        self.signals: list[tuple[int, int]] = []
        self.supervisor = Supervisor(
            str(folder),
            {
                "request": request(**fields),
                "order": None,
                "secrets": {},
                "python_folder": "/bin",
                "client_folder": "/",
            },
        )
        self.job = self.supervisor.job
        addresses = [f"127.0.0.{101 + node}" for node in range(NODES)]
        self.job.environments = NodeEnvironments(self.job.assignment, self.job.files, self.job.scope, addresses, 29500)
        for name in (self.job.files.logs, self.job.files.stacks):
            Path(name).mkdir()
        self.job.write_status(pid=0, port=29500, addresses=addresses, notes=[])
        monkeypatch.setattr(self.job, "start", self.start)
        monkeypatch.setattr(setup, "prove_script", lambda job, node: job.scope.script(job.files, node))
        monkeypatch.setattr(processes, "reap", lambda: False)
        monkeypatch.setattr(processes, "find_children", list)
        monkeypatch.setattr(processes, "find_descendants", lambda of=None: [])
        monkeypatch.setattr(processes, "kill_all", lambda known=(): True)
        monkeypatch.setattr(processes, "send_group", lambda pid, number: self.signals.append((pid, number)))
        monkeypatch.setattr(processes, "send", lambda pid, number: self.signals.append((pid, number)))

    def attempt(self, *script: tuple[float, Callable[[], Any]]) -> None:
        """Say what happens in the next attempt."""
        self.scripts.append(list(script))

    def run(self) -> dict[str, Any]:
        """Return the status that is left."""
        self.supervisor.run()
        status: Any = status_file.read_status(str(self.folder))
        return dict(status)

    def start(self, argv: list[str], node: int, **options: Any) -> Leader:
        """Start what stands in for a node's start script; with the first node an attempt begins."""
        number = len(self.leaders) // NODES
        leader = self.leaders[len(self.leaders)] = Leader(pid=10 * (number + 1) + node)
        self.job.started.append(leader)  # type: ignore[arg-type]
        if node == 0:
            for seconds, act in self.scripts[number]:
                self.clock.at(self.clock.passed + seconds, act)
        return leader

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self, *ranks: int, assumed: bool = False, alone: bool = False, group: int = NODES * NPROC
    ) -> Callable[[], None]:
        """Have ranks start, all unless some are named; they join a process group unless each is alone."""

        def act() -> None:
            for rank in ranks or range(NODES * NPROC):
                words: Any = {"node": rank // NPROC, "rank": rank, "pid": self.pid(rank), "is_assumed": assumed}
                events.append_event(str(self.folder), "rank_start", world=NODES * NPROC, **words)
                if not alone:
                    events.append_event(str(self.folder), "rank_joined", pid=self.pid(rank), world=group)

        return act

    def pid(self, rank: int) -> int:
        return 1000 * ((len(self.leaders) - 1) // NODES + 1) + rank

    def say(self, rank: int, text: str, stream: str = "stdout") -> Callable[[], None]:
        def act() -> None:
            with Path(JobDirectory(str(self.folder)).log_of(rank // NPROC, rank, stream)).open("a") as log:
                log.write(text + "\n")

        return act

    def note(self, rank: int, number: int, *, waits: bool = True) -> Callable[[], None]:
        """Have a rank note how many collectives of NCCL it has started, and whether it waits in the last one."""

        def act() -> None:
            collective = {"group": "0", "ranks": [0, 1, 2, 3], "name": "all_reduce", "number": number}
            tensors: dict[str, Any] = {"sizes": [], "types": [], "frames": []}
            noted = {"since": self.clock.monotonic(), "started": {"0": number}, "waits": waits, "call": ""}
            waits_in = {**collective, **tensors} if waits else None
            file = Path(JobDirectory(str(self.folder)).standstill_of(rank))
            file.write_text(json.dumps({"pid": self.pid(rank), "waits_in": waits_in, **noted}))

        return act

    def end(self, rank: int, code: int) -> Callable[[], None]:
        return lambda: events.append_event(str(self.folder), "child_exit", pid=self.pid(rank), code=code)

    def fail(self, rank: int, *, victim: bool) -> Callable[[], None]:
        """Have a rank report an exception, and print it at once."""

        def act() -> None:
            self.report(rank, victim=victim)()
            self.say(rank, "RuntimeError", "stderr")()

        return act

    def report(self, rank: int, *, victim: bool = False) -> Callable[[], None]:
        """Have a rank report an exception that it has yet to print."""

        def act() -> None:
            log = Path(JobDirectory(str(self.folder)).log_of(rank // NPROC, rank, "stderr"))
            size = log.stat().st_size if log.exists() else 0
            words: Any = {"pid": self.pid(rank), "is_victim": victim, "stderr_size": size}
            events.append_event(str(self.folder), "rank_exception", **words)

        return act

    def leave_group(self, rank: int, exchanged: bool | None = None) -> Callable[[], None]:
        words: Any = {"has_exchanged": exchanged}
        return lambda: events.append_event(str(self.folder), "rank_end", pid=self.pid(rank), **words)

    def say_of_node(self, node: int, text: str) -> Callable[[], None]:
        def act() -> None:
            with Path(JobDirectory(str(self.folder)).log_of(node, None, "stdout")).open("a") as log:
                log.write(text + "\n")

        return act

    def happened(self) -> list[Event]:
        return events.EventReader(str(self.folder)).new()

    def leave(self, *codes: int | None) -> Callable[[], None]:
        """Have the leaders of the nodes end with these codes."""

        def act() -> None:
            first = (len(self.leaders) - 1) // NODES * NODES
            for node, code in enumerate(codes):
                self.leaders[first + node].code = code

        return act

    def cancel(self, grace: float | None = None) -> Callable[[], None]:
        return lambda: status_file.ask_cancel(str(self.folder), grace)

    def well(self) -> list[tuple[float, Callable[[], Any]]]:
        """Return what happens where nothing goes wrong."""
        ends = [(5.0, self.end(rank, 0)) for rank in range(NODES * NPROC)]
        return [(1.0, self.begin()), (2.0, self.say(0, "step 1")), *ends, (5.1, self.leave(0, 0))]

    @property
    def took(self) -> float:
        """Return the seconds until the job had ended."""
        status: Any = status_file.read_status(str(self.folder))
        return float(status["ended"]) - self.clock.began


def request(**fields: Any) -> AgentRequest:
    """Return what the local backend would be asked for."""
    resources = {"nodes": NODES, "nproc_per_node": NPROC}
    given = {"name": "j", "mode": "torchrun", "boot_file": "t.py", "code_dir": "/code", "resources": resources}
    settings = load_settings()
    wanted = {name: value for name, value in {**given, **fields}.items() if value is not None}
    found = build_plan(load_mapping(wanted).spec, settings)
    code = CodeRef("file:///x/code.tar.gz", "x/code.tar.gz", "archive", "code", "d" * 64)
    document = open_backend("local", settings).request(found, render(found), code, "j-1").documents[LOCAL_REQUEST]
    found_request: AgentRequest = json.loads(document)
    return found_request


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Return what makes a world for a job with some fields."""
    clock = Clock()
    for module in TIMED:
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(setup, "fetch_code", lambda job: dict.fromkeys(job.nodes, "sha"))
    folder = tmp_path / "job"
    folder.mkdir()
    return lambda **fields: World(folder, clock, monkeypatch, **fields)


def failure(status: dict[str, Any]) -> tuple[Any, ...]:
    told = status["failure"]
    return told["node"], told["rank"], told["exit_code"], told["signal"]


def test_all_is_well(world: Callable[..., World]) -> None:
    found = world()
    found.attempt(*found.well())
    status = found.run()
    assert (status["state"], status["reason"], status["failure"]) == ("SUCCEEDED", "", None)
    assert status["last_step"] == 1
    assert 5.1 <= found.took < 5.3


# ── who failed first ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_clear_failure_ends_the_job_within_half_a_second(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (9, found.say(3, "last words")), (10, found.end(3, 7)))
    status = found.run()
    assert (status["state"], status["reason"]) == ("FAILED", "EXIT_CODE")
    assert failure(status) == (1, 3, 7, None)
    assert status["failure"]["message"] == "node 1, rank 3 failed first: exit code 7"
    assert 10.2 <= found.took < 10.5
    assert [number for _, number in found.signals[:2]] == [signal.SIGTERM, signal.SIGTERM]


def test_a_rank_is_not_stopped_before_it_has_printed_its_exception(world: Callable[..., World]) -> None:
    found = world()
    printed = (12, found.say(3, "RuntimeError: why", "stderr"))
    found.attempt((1, found.begin()), (9, found.say(3, "a warning", "stderr")), (10, found.report(3)), printed)
    status = found.run()
    assert status["failure"]["last_lines"][-1] == "RuntimeError: why"
    assert 12 <= found.took < 12.5


def test_a_rank_that_ends_without_printing_its_exception_is_not_waited_for(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (10, found.report(3)), (11, found.leave_group(3)))
    assert failure(found.run()) == (1, 3, 1, None)
    assert 11 <= found.took < 11.5


def test_a_rank_that_never_prints_its_exception_is_not_waited_for_long(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (10, found.report(3)))
    assert failure(found.run()) == (1, 3, 1, None)
    assert 10 + attempt.SETTLE_UNCLEAR_SECONDS <= found.took < 10 + attempt.SETTLE_UNCLEAR_SECONDS + 0.5


def test_a_victim_that_is_seen_first_is_not_named(world: Callable[..., World]) -> None:
    found = world()
    late = 10 + attempt.SETTLE_UNCLEAR_SECONDS - 0.5
    found.attempt((1, found.begin()), (10, found.fail(0, victim=True)), (late, found.end(3, -9)))
    status = found.run()
    assert (status["reason"], failure(status)) == ("SIGNAL", (1, 3, None, 9))
    assert status["failure"]["victims"] == [0]


def test_where_only_victims_are_seen_the_first_of_them_is_named_after_a_while(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (10, found.fail(2, victim=True)), (10.1, found.fail(0, victim=True)))
    status = found.run()
    assert failure(status)[1] == 2
    assert 10 + attempt.SETTLE_UNCLEAR_SECONDS <= found.took < 10 + attempt.SETTLE_UNCLEAR_SECONDS + 0.5


def test_a_launcher_that_ends_is_explained_by_its_rank(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (10, found.leave(None, 1)), (10.1, found.end(2, 5)))
    assert failure(found.run()) == (1, 2, 5, None)


def test_a_script_that_fails_before_any_rank(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.leave(None, 3)))
    status = found.run()
    assert failure(status) == (1, None, 3, None)
    assert found.took < 2


def test_a_killed_launcher_is_a_failed_node(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (10, found.leave(-9, None)))
    status = found.run()
    assert (status["reason"], failure(status)) == ("NODE_FAILED", (0, None, None, 9))


def test_what_comes_in_while_the_others_are_stopped_still_counts(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (10, found.leave(1, None)))
    found.supervisor._stop = _with(found.supervisor._stop, found.end(1, 4))  # type: ignore[method-assign]
    assert failure(found.run()) == (0, 1, 4, None)


def _with(stop: Callable[..., None], act: Callable[[], None]) -> Callable[..., None]:
    def stopping(outcome: Any) -> None:
        act()
        stop(outcome)

    return stopping


def test_secrets_are_struck_out_of_the_last_words(world: Callable[..., World]) -> None:
    found = world(secrets={"TOKEN": "env:HERE"})
    found.job.assignment["secrets"] = {"TOKEN": "hunter2", "LONGER": "hunter2-and-more"}
    found.attempt((1, found.begin()), (2, found.say(3, "x hunter2-and-more y hunter2")), (3, found.end(3, 1)))
    found.run()
    assert "hunter2" not in Path(JobDirectory(found.folder).status).read_text()
    assert found.job.without_secrets("x hunter2-and-more y hunter2") == "x <LONGER> y <TOKEN>"


# ── again ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_started_again_and_the_cost_is_counted(world: Callable[..., World]) -> None:
    found = world(restarts={"max": 2, "backoff": "30s"})
    steps = [(float(number), found.say(0, f"step {number}")) for number in range(2, 9)]
    found.attempt((1, found.begin()), *steps, (9, found.end(3, 7)))
    found.attempt((1, found.begin()), (2, found.say(0, "step 6")), *found.well()[2:])
    status = found.run()
    assert status["state"] == "SUCCEEDED"
    (restart,) = status["restarts"]
    assert (restart["reason"], restart["last_step"], restart["steps_lost"]) == ("EXIT_CODE", 8, 3)
    assert restart["failed_at"] == pytest.approx(found.clock.began + 9, abs=0.1)
    assert restart["back_at"] - restart["detected_at"] == pytest.approx(32, abs=0.5)
    assert status["attempt"] == 1
    assert "restart 1 of 2 in 30 s" in (found.folder / "logs/node-0.stderr.log").read_text()


def test_the_pause_doubles_and_the_last_failure_is_the_result(world: Callable[..., World]) -> None:
    found = world(restarts={"max": 2, "backoff": "10s"})
    for code in (5, 6, 7):
        found.attempt((1, found.begin()), (2, found.end(1, code)))
    status = found.run()
    assert (status["state"], failure(status), len(status["restarts"])) == ("FAILED", (0, 1, 7, None), 2)
    assert found.took == pytest.approx(3 * 2 + 10 + 20, abs=1.5)


@pytest.mark.parametrize(
    ("on", "restarts"), [("exit:7", 1), ("exit:8", 0), ("signal", 0), ("log:/bad luck/", 1), ("node_failure", 0)]
)
def test_only_what_the_policy_names_is_started_again(on: str, restarts: int, world: Callable[..., World]) -> None:
    found = world(restarts={"max": 1, "on": [on], "backoff": 0})
    script = [(1, found.begin()), (2, found.say(3, "bad luck")), (3, found.end(3, 7))]
    found.attempt(*script)
    found.attempt(*script)
    assert len(found.run()["restarts"]) == restarts


def test_a_cancel_in_the_pause_before_a_restart(world: Callable[..., World]) -> None:
    found = world(restarts={"max": 2, "backoff": "1h"})
    found.attempt((1, found.begin()), (2, found.end(1, 5)), (100, found.cancel()))
    assert found.run()["state"] == "CANCELLED"
    assert found.took < 101


# ── the end from outside ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_job_is_cancelled_whatever_its_ranks_say_to_that(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (5, found.cancel()))
    found.supervisor._stop = _with(found.supervisor._stop, found.end(0, 1))  # type: ignore[method-assign]
    status = found.run()
    assert (status["state"], status["failure"]) == ("CANCELLED", None)


def test_a_timeout(world: Callable[..., World]) -> None:
    found = world(timeout="1m")
    found.attempt((1, found.begin()))
    status = found.run()
    assert (status["state"], status["reason"]) == ("FAILED", "TIMEOUT")
    assert 60 < found.took < 61


def test_a_supervisor_that_is_told_to_end_says_that_the_job_is_lost(world: Callable[..., World]) -> None:
    found = world()
    found.attempt((1, found.begin()), (5, lambda: setattr(found.job, "told_to_end", True)))
    status = found.run()
    assert (status["state"], status["reason"]) == ("LOST", "SUPERVISOR_ENDED")


# ── silence ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_jumps_ends_no_job(hours: int, world: Callable[..., World], monkeypatch: Any) -> None:
    found = world(timeout="1h", hang_after="1m")

    def jump() -> None:
        found.clock.wrong_by = 3600.0 * hours

    says = ((20, found.say(1, "step 1")), (30, jump), (60, found.say(2, "step 2")))
    found.attempt((1, found.begin()), *says, (100, found.leave(0, 0)))
    assert found.run()["state"] == "SUCCEEDED"


def test_silence_is_a_hang_and_each_line_puts_it_off(world: Callable[..., World], monkeypatch: Any) -> None:
    monkeypatch.setattr(hang_detector, "dump_stacks", lambda folder, ranks: {})
    found = world(hang_after="1m")
    found.attempt((1, found.begin()), (50, found.say(1, "step 1")), (100, found.say(2, "step 2")))
    status = found.run()
    assert (status["state"], status["reason"]) == ("FAILED", "HANG")
    assert status["message"].startswith("no output and no CPU time for 60 s")
    assert 160 <= found.took < 162


def test_the_rank_that_is_elsewhere_is_named(world: Callable[..., World], monkeypatch: Any) -> None:
    def stacks(line: int, function: str) -> list[str]:
        return ["Current thread (most recent call first):", f'  File "/code/train.py", line {line} in {function}']

    def dump(folder: str, ranks: dict[int, int]) -> dict[int, list[str]]:
        return {rank: stacks(7, "load") if rank == 2 else stacks(30, "step") for rank in ranks}

    monkeypatch.setattr(hang_detector, "dump_stacks", dump)
    found = world(hang_after="1m")
    found.attempt((1, found.begin()))
    status = found.run()
    assert failure(status) == (1, 2, None, None)
    assert "the others: train.py:30 in step; rank 2: train.py:7 in load" in status["message"]


def test_the_cpu_time_of_a_rank_that_waits_in_nccl_is_no_sign_of_life(
    world: Callable[..., World], monkeypatch: Any
) -> None:
    monkeypatch.setattr(hang_detector, "dump_stacks", lambda folder, ranks: {1: ["Thread (most recent call first):"]})
    found = world(hang_after="1m", timeout="10m")
    monkeypatch.setattr(processes, "find_descendants", lambda of=None: [found.pid(rank) for rank in range(4)])
    monkeypatch.setattr(hang_detector, "_cpu_seconds", lambda pid: [found.clock.passed if pid == found.pid(0) else 0.0])
    found.attempt((1, found.begin()), (200, found.note(0, 6)), (200, found.note(1, 5, waits=False)))
    status = found.run()
    assert status["reason"] == "HANG"
    assert "no output for 60 s, and no CPU time except to wait in NCCL" in status["message"]
    assert "rank 0: unknown → all_reduce (collective 6); rank 1, which did not call it: unknown" in status["message"]
    assert failure(status)[:2] == (0, 1)
    assert 250 < found.took < 270


def test_what_a_rank_waited_for_when_it_failed_is_told(world: Callable[..., World]) -> None:
    found = world()
    waits = ((5, found.note(0, 6)), (5, found.note(1, 5, waits=False)))
    found.attempt((1, found.begin()), *waits, (60, found.end(0, -signal.SIGABRT)), (61, found.leave(1, 0)))
    assert found.run()["message"] == (
        "node 0, rank 0 failed first: signal 6 (SIGABRT); it waited in all_reduce (collective 6), which rank 1 did not "
        "call"
    )


def test_once_a_rank_has_ended_well_the_others_have_five_minutes(world: Callable[..., World], monkeypatch: Any) -> None:
    monkeypatch.setattr(hang_detector, "dump_stacks", lambda folder, ranks: {})
    found = world(hang_after="1h")
    found.attempt((1, found.begin()), (10, found.say(0, "step 1")), (11, found.end(0, 0)))
    status = found.run()
    assert status["reason"] == "HANG"
    assert "after rank 0 had ended with exit code 0" in status["message"]
    assert 310 <= found.took < 312


@pytest.mark.parametrize(("silent_for", "is_kept"), [(50, True), (20, False)])
def test_a_node_that_is_stopped_while_it_is_silent_keeps_its_stacks(
    silent_for: int, is_kept: bool, world: Callable[..., World], monkeypatch: Any
) -> None:
    asked: list[set[int]] = []

    def dump(folder: str, ranks: dict[int, int]) -> dict[int, list[str]]:
        asked.append(set(ranks))
        return {}

    monkeypatch.setattr(hang_detector, "dump_stacks", dump)
    found = world(hang_after="1m")
    monkeypatch.setattr(found.job.scope, "stopped", lambda: node_scope.OneNode.stopped(cast("Any", None)))
    found.attempt((1, found.begin()), (1 + silent_for, lambda: setattr(found.job, "told_to_end", True)))
    assert found.run()["reason"] == status_file.STOPPED_BY_PLATFORM
    assert asked == ([{0, 1, 2, 3}] if is_kept else [])


def test_the_stacks_are_kept_before_a_node_of_another_machine_ends_for_the_hang(
    world: Callable[..., World], monkeypatch: Any
) -> None:
    """Its end breaks the ranks that wait here, often before this node hears of it."""
    asked: list[float] = []

    def dump(folder: str, ranks: dict[int, int]) -> dict[int, list[str]]:
        asked.append(found.clock.monotonic() - began)
        return {}

    monkeypatch.setattr(hang_detector, "dump_stacks", dump)
    found = world(hang_after="1m")
    monkeypatch.setattr(found.job.scope, "other_nodes_seconds", 10.0)
    began = found.clock.monotonic()
    found.attempt((1, found.begin()), (50, found.say(0, "step 1")), (150, found.leave(0, 0)))
    found.run()
    assert [round(seconds, -1) for seconds in asked] == [30, 80, 110]


def test_without_a_watch_silence_is_nothing(world: Callable[..., World]) -> None:
    found = world(hang_after=0)
    found.attempt((1, found.begin()), (400, found.leave(0, 0)))
    assert found.run()["state"] == "SUCCEEDED"


# ── faults on purpose ───────────────────────────────────────────────────────────────────────────────────────────────


def fault(text: str, **fields: Any) -> Fault:
    usual = {
        "text": text,
        "action": "kill",
        "target": "rank",
        "number": 3,
        "signal": 9,
        "at_step": None,
        "after": None,
    }
    return cast("Fault", {**usual, "by": None, **fields})


def test_a_fault_strikes_at_its_step_and_is_named_with_the_restart(world: Callable[..., World]) -> None:
    found = world(restarts={"max": 1, "backoff": 0})
    found.supervisor.faults.waiting = [fault("kill rank 3 at step 4", at_step=4)]
    steps = [(float(number), found.say(0, f"step {number}")) for number in range(2, 9)]
    found.attempt((1, found.begin()), *steps, (4.5, found.end(3, -9)))
    found.attempt(*found.well())
    status = found.run()
    assert (1003, signal.SIGKILL) in found.signals
    assert status["restarts"][0]["fault"]["text"] == "kill rank 3 at step 4"
    assert found.clock.began + 4 <= status["restarts"][0]["fault"]["t"] < found.clock.began + 4.2


def test_a_fault_is_named_where_the_job_ends_with_it(world: Callable[..., World]) -> None:
    found = world()
    found.supervisor.faults.waiting = [fault("kill rank 3 at step 4", at_step=4)]
    found.attempt(
        (1.0, found.begin()), (4.0, found.say(0, "step 4")), (4.5, found.end(3, -9)), (4.6, found.leave(0, 1))
    )
    status = found.run()
    assert failure(status) == (1, 3, None, 9)
    shown = parse_status(cast("NodeStatus", status), events.EventReader(str(found.folder)).new())
    assert shown.failure
    assert shown.failure.meaning == "jobsubmit sent this signal on purpose"
    assert "--fault 'kill rank 3 at step 4'" in shown.failure.hint


def test_a_fault_strikes_a_node_of_a_command_that_starts_no_ranks(world: Callable[..., World]) -> None:
    found = world(mode=None, boot_file=None, command="python t.py")
    found.supervisor.faults.waiting = [fault("kill node 1 at step 2", target="node", number=1, at_step=2)]
    found.attempt((1.0, found.say_of_node(1, "step 2")), (3.0, found.leave(0, -9)))
    status = found.run()
    assert found.signals[0] == (found.leaders[1].pid, signal.SIGKILL)
    assert status["failure"]["fault"] == "kill node 1 at step 2"


def test_a_fault_whose_moment_never_comes_is_noted(world: Callable[..., World]) -> None:
    found = world()
    found.supervisor.faults.waiting = [fault("kill rank 3 at step 99", at_step=99)]
    found.attempt(*found.well())
    status = found.run()
    assert status["notes"] == ["the fault `kill rank 3 at step 99` was not triggered"]
    assert (1003, signal.SIGKILL) not in found.signals


def test_a_late_node_starts_late(world: Callable[..., World]) -> None:
    found = world()
    found.supervisor.faults.waiting = [fault("delay node 1 by 20s", action="delay", number=1, by=20)]
    found.attempt((1, found.begin()), (30, found.leave(0, 0)))
    found.run()
    lines = [json.loads(line) for line in Path(JobDirectory(found.folder).events).read_text().splitlines()]
    starts = {line["node"]: line["t"] for line in lines if line["event"] == "node_start"}
    assert starts[1] - starts[0] == pytest.approx(20, abs=0.1)


# ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_steps_of_a_job_are_known_with_their_times(world: Callable[..., World]) -> None:
    found = world()
    found.attempt(*found.well())
    status = found.run()
    shown = parse_status(cast("NodeStatus", status), events.EventReader(str(found.folder)).new())
    times = {step.name: (step.start - found.clock.began, (step.end or 0) - found.clock.began) for step in shown.steps}
    assert times["rendezvous"] == pytest.approx((0, 1), abs=0.2)
    assert times["first_output"] == pytest.approx((1, 2), abs=0.2)
    assert times["training"] == pytest.approx((2, 5.1), abs=0.2)


def test_a_boot_file_that_starts_nothing_is_noted(world: Callable[..., World]) -> None:
    found = world(mode="spawn")
    found.attempt((1, found.leave(0, 0)))
    status = found.run()
    assert status["state"] == "SUCCEEDED"
    assert "started no training process" in status["notes"][0]


def test_a_job_whose_processes_never_met_says_so(world: Callable[..., World]) -> None:
    found = world()
    (_, _), *rest = found.well()
    found.attempt((1.0, found.begin(alone=True)), *rest)
    status = found.run()
    assert status["state"] == "SUCCEEDED"
    assert "no process joined a process group" in status["notes"][0]


def test_groups_that_hold_one_node_each_are_noted(world: Callable[..., World]) -> None:
    found = world(mode="spawn")
    (_, _), *rest = found.well()
    found.attempt((1.0, found.begin(assumed=True, group=NPROC)), *rest)
    status = found.run()
    assert status["state"] == "SUCCEEDED"
    assert "the 4 processes of the job did not join one process group: the largest group holds 2" in status["notes"][0]


@pytest.mark.parametrize(("exchanged", "notes"), [(False, 1), (None, 0), (True, 0)])
def test_a_group_that_no_process_used_is_noted(world: Callable[..., World], exchanged: bool | None, notes: int) -> None:
    found = world()
    began, *rest = found.well()
    found.attempt(
        began,
        (2.0, found.leave_group(1, exchanged=False)),
        *((2.0, found.leave_group(rank, exchanged)) for rank in (0, 2, 3)),
        *rest,
    )
    assert ["no process used it" in note for note in found.run()["notes"]] == [True] * notes


def test_a_rank_that_ends_early_is_named_where_its_launcher_ends_as_soon_as_the_others(
    world: Callable[..., World],
) -> None:
    found = world(mode=None, boot_file=None, command="python train.py")
    found.attempt(
        (1.0, found.begin(assumed=True)),
        (3.0, found.end(3, 0)),
        (3.5, found.fail(2, victim=True)),
        (3.6, found.leave(None, 1)),
        (3.7, found.fail(0, victim=True)),
    )
    status = found.run()
    assert (status["reason"], failure(status)) == ("ENDED_EARLY", (1, 3, 0, None))
    assert "node 1, rank 3 ended with exit code 0" in status["message"]


def test_processes_that_ranks_start_may_meet(world: Callable[..., World]) -> None:
    found = world()
    (_, _), *rest = found.well()
    meet = (1.5, lambda: events.append_event(str(found.folder), "rank_joined", pid=99_999))
    found.attempt((1.0, found.begin(alone=True)), meet, *rest)
    assert found.run()["notes"] == []


def test_ranks_of_a_command_that_never_met_say_so_too(world: Callable[..., World]) -> None:
    found = world(mode=None, boot_file=None, command="torchrun -m alone")
    (_, _), *rest = found.well()
    found.attempt((1.0, found.begin(alone=True)), *rest)
    status = found.run()
    assert status["state"] == "SUCCEEDED"
    assert "no process joined a process group" in status["notes"][0]


def test_a_rank_that_ends_well_while_others_train_is_named(world: Callable[..., World]) -> None:
    found = world()
    found.attempt(
        (1.0, found.begin()),
        (2.0, found.say(1, "step 3")),
        (3.0, found.leave_group(1)),
        (3.5, found.fail(0, victim=True)),
        (3.5, found.fail(2, victim=True)),
        (4.0, found.end(1, 0)),
        (4.0, found.end(0, 1)),
    )
    status = found.run()
    assert (status["state"], status["reason"]) == ("FAILED", "ENDED_EARLY")
    assert "node 0, rank 1 ended with exit code 0 at step 3, 0.5 s before node 0, rank 0 failed" in status["message"]
    assert status["failure"]["victims"] == [0, 2]


def test_a_command_of_the_users_own_runs_once_it_has_started(world: Callable[..., World]) -> None:
    found = world(command="python t.py", boot_file=None)
    states: list[str] = []

    def look() -> None:
        status: Any = status_file.read_status(str(found.folder))
        states.append(status["state"])

    found.attempt((2.0, found.say_of_node(0, "iter 7 loss 0.5")), (4.0, look), (5.0, found.leave(0, 0)))
    status = found.run()
    assert states == ["RUNNING"]
    assert (status["state"], status["last_step"]) == ("SUCCEEDED", 7)
    phases = [(event["step"], event["edge"]) for event in found.happened() if event["event"] == "step"]
    assert ("rendezvous", "start") not in phases
    assert phases[-5:-2] == [("first_output", "end"), ("training", "start"), ("training", "end")]
