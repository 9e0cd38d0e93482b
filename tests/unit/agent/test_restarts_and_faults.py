"""The parts of a job's life that decide without processes: restarts, faults, hangs, memory."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.agent.protocol import Failure, RestartPolicy
from jobsubmit.agent.recovery.oom_detector import OomDetector
from jobsubmit.agent.recovery.outcome import Outcome
from jobsubmit.agent.recovery.restart_policy import wants_restart
from jobsubmit.agent.recovery.step_parser import StepParser
from jobsubmit.agent.retry import pause_before
from jobsubmit.agent.supervisor import hang_detector as hang
from jobsubmit.backends.shared.failure_hints import diagnose
from jobsubmit.errors import UsageError
from jobsubmit.plan.fault_injection import Fault, require_fit


def failed(reason: str, code: int | None = None) -> Outcome:
    words = ["some words", "NCCL timeout"]
    failure: Failure = {
        "node": 0,
        "rank": 0,
        "exit_code": code,
        "signal": None,
        "message": "",
        "quoted": "rank 0",
        "last_lines": words,
        "words": words,
    }
    return Outcome("FAILED", reason, "", failure)


@pytest.mark.parametrize(
    ("on", "outcome", "expected"),
    [
        ("failure", failed("EXIT_CODE", 1), True),
        ("failure", failed("SIGNAL"), True),
        ("failure", failed("OOM"), True),
        ("failure", failed("NODE_FAILED"), False),
        ("signal", failed("SIGNAL"), True),
        ("signal", failed("EXIT_CODE", 1), False),
        ("node_failure", failed("NODE_FAILED"), True),
        ("node_failure", failed("EXIT_CODE", 1), False),
        ("hang", failed("HANG"), True),
        ("exit:75", failed("EXIT_CODE", 75), True),
        ("exit:75", failed("EXIT_CODE", 7), False),
        ("log:/NCCL (error|timeout)/", failed("EXIT_CODE", 1), True),
        ("log:/CUDA/", failed("EXIT_CODE", 1), False),
        ("failure", Outcome("FAILED", "TIMEOUT"), False),
        ("failure", Outcome("FAILED", "FETCH_FAILED"), False),
        ("failure", Outcome("CANCELLED"), False),
        ("failure", Outcome("SUCCEEDED"), False),
    ],
)
def test_what_a_job_is_started_again_after(on: str, outcome: Outcome, expected: bool) -> None:
    policy: RestartPolicy = {"max": 1, "on": [on], "backoff": 0}
    assert wants_restart(policy, outcome, 0) is expected
    assert not wants_restart(policy, outcome, 1)
    assert not wants_restart(None, outcome, 0)


def test_the_pause_doubles_up_to_ten_minutes() -> None:
    assert [pause_before(restart, 5) for restart in (1, 2, 3, 20)] == [5, 10, 20, 600]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kill node 1 at step 20", ("kill", "node", 1, signal.SIGKILL, 20, 0)),
        ("kill rank 3 with SIGTERM after 5s", ("kill", "rank", 3, signal.SIGTERM, None, 5)),
        ("kill  rank 0  with stop after 2m", ("kill", "rank", 0, signal.SIGSTOP, None, 120)),
        ("kill rank 3 with 9", ("kill", "rank", 3, signal.SIGKILL, None, 0)),
    ],
)
def test_faults_are_read(text: str, expected: tuple[Any, ...]) -> None:
    fault = Fault.parse(text)
    assert (fault.action, fault.target, fault.number, fault.signal, fault.at_step, fault.after) == expected


def test_a_delay_is_read() -> None:
    fault = Fault.parse("delay node 2 by 30s")
    assert (fault.action, fault.number, fault.by) == ("delay", 2, 30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("explode", "is invalid"),
        ("kill node x", "is invalid"),
        ("kill rank 1 with SIGFOO", "unknown signal SIGFOO"),
        ("kill rank 1 after soon", "soon is not a duration"),
        ("kill rank 1 at step ten", "ten is not a step number"),
        ("delay rank 1 by 5s", "is invalid"),
    ],
)
def test_a_fault_that_cannot_be_read(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        Fault.parse(text)


def test_a_fault_must_fit_the_job() -> None:
    require_fit([Fault.parse("kill node 1")], 2, 2)
    require_fit([Fault.parse("kill rank 9")], 2, None)
    for text in ("kill node 2", "kill rank 4", "delay node 2 by 1s"):
        with pytest.raises(UsageError, match="has only"):
            require_fit([Fault.parse(text)], 2, 2)


STACK = """\
Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/jobs/nodes/0/code/boot.py", line 12 in train
  File "/jobs/nodes/0/code/boot.py", line 20 in <module>
"""


def test_where_a_rank_hangs_is_in_the_users_code() -> None:
    assert hang.find_place(STACK.splitlines()) == ("boot.py:12 in train", "all_reduce", True)
    assert hang.main_thread(STACK.splitlines())[0].endswith("all_reduce")
    assert hang.find_place([]) == ("", "", False)


def test_the_stacks_that_people_see_are_those_of_their_own_threads(tmp_path: Path) -> None:
    ours = 'Thread 0x00007f3 (most recent call first):\n  File "/j/agent/nccl_watch.py", line 51 in look_again\n\n'
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks/rank-3.txt").write_text(ours + STACK)
    assert dict(hang.read_stacks(str(tmp_path))) == {3: STACK.encode()}


def test_the_rank_that_is_somewhere_else_is_named() -> None:
    waits, works = ("boot.py:12 in train", "all_reduce", True), ("data.py:3 in load", "", False)
    other = ("boot.py:15 in train", "barrier", True)
    assert hang.find_odd_one_out({0: waits, 1: waits, 2: works, 3: waits}) == 2
    assert hang.find_odd_one_out({0: waits, 1: works}) == 1
    assert hang.find_odd_one_out({0: waits, 1: waits, 2: other}) == 2
    assert hang.find_odd_one_out({0: waits, 1: other}) is None
    assert hang.find_odd_one_out({0: waits, 1: waits}) is None
    assert hang.find_odd_one_out({0: waits, 1: waits, 2: works, 3: works}) is None


@pytest.mark.parametrize("group", ["/job", "/job/jobsubmit-0123456789abcdef"])
def test_a_kill_for_want_of_memory_is_told_by_the_kernels_count(group: str, tmp_path: Path) -> None:
    own, events = tmp_path / "cgroup", tmp_path / "fs/job/memory.events"
    own.write_text(f"0::{group}\n")
    events.parent.mkdir(parents=True)
    events.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    watch = OomDetector(str(tmp_path / "fs"), str(own))
    assert not watch.has_struck()
    events.write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert watch.has_struck()


def test_without_a_control_group_nothing_is_claimed(tmp_path: Path) -> None:
    assert not OomDetector(str(tmp_path), str(tmp_path / "none")).has_struck()


def test_steps_are_read_from_what_ranks_write(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs/rank-0.stdout.log"
    log.write_text("loading\nstep 1 loss 0.5\nStep: 2 | loss\nfootstep 99\nsteps 77\nepoch 3 step=3/10\nstep 4 lo")
    progress = StepParser(str(tmp_path))
    assert progress.look([(0, 0)])
    assert (progress.first, progress.last) == (1, 3)
    log.write_text(log.read_text() + "ss\n")
    assert progress.look([(0, 0)])
    assert progress.last == 4
    assert not progress.look([(0, 0)])


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("Epoch: [2][ 10/100]\tTime", 2),
        ("iter 7: loss 2.31, time 40ms", 7),
        ("Iteration 12/100", 12),
        ("Steps: 30 | lr 0.1", 30),
        ("step 5\nsampling loop time step: 100%|####| 5/5", 5),
        ("global_step=44 loss=1", 44),
        ("epoch 9\niter 3\n", 3),
        ("epoch 9 step 4\nepoch 10\n", 4),
        ("  Total optimization steps: 500\n  Num Epochs = 3\nmax_steps: 90\nwarmup steps: 5\n", None),
        ("epochs 10, iterations 500", None),
        ("[GPU0] Epoch 3 | Batchsize: 32 | Steps: 64", 3),
    ],
)
def test_steps_have_other_names_too(text: str, last: int | None, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/node-1.stdout.log").write_text(f"{text}\n")
    progress = StepParser(str(tmp_path))
    assert progress.look([(1, None)]) is (last is not None)
    assert progress.last == last


def test_steps_that_nothing_prints_are_counted_where_they_are_timed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "timing").mkdir()
    rows = '{"timing":1,"rank":0}\n[0,4,1000,1,2,3,4,5]\n["buckets",0,9,[]]\n[0,5,2000,1,2,3,4,5]\n[0,6,'
    (tmp_path / "timing/rank-0.jsonl").write_text(rows)
    progress = StepParser(str(tmp_path))
    assert progress.look([(0, 0)])
    assert (progress.first, progress.last) == (4, 5)
    assert not progress.look([(0, 0)])
    (tmp_path / "logs/rank-0.stdout.log").write_text("step 2\n")
    assert progress.look([(0, 0)])
    assert progress.last == 2


@pytest.mark.parametrize(
    ("text", "value", "step"),
    [
        ("step 3 loss 0.5\nstep 4 loss nan\nstep 5 loss nan\n", "nan", 4),
        ("{'loss': inf, 'epoch': 2}\n", "inf", 2),
        ("Epoch: [1][5/10] train_loss: -Inf (nan)\n", "Inf", 1),
        ("loss 0.5 nan_count 0\nlossless nanometres\n", "", None),
    ],
)
def test_a_loss_that_is_no_number_is_noticed(text: str, value: str, step: int | None, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank-2.stdout.log").write_text(text)
    progress = StepParser(str(tmp_path))
    progress.look([(1, 2)])
    bad = progress.bad_loss
    assert (bad.value if bad else "") == value
    assert not bad or (bad.node, bad.rank, bad.step) == (1, 2, step)


def test_a_reason_explains_more_than_what_a_process_said_last() -> None:
    said = ["Connection closed by peer"]
    hang, oom = diagnose(said, reason="HANG"), diagnose(said, signal=9, reason="OOM")
    assert hang and "same order" in hang.hint
    assert oom and "the kernel killed" in oom.meaning
    assert diagnose(["nothing known"], reason="EXIT_CODE") is None
