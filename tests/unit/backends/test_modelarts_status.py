"""What the service says of a job → how the job is."""

from __future__ import annotations

from typing import Any

import pytest
from node_status import failed

from jobsubmit.backends.modelarts.states import apply_ends, explain_failure, parse_job_status, parse_moment
from jobsubmit.backends.models import State


def job(phase: str, **codes: int | str) -> dict[str, Any]:
    tasks = [name.replace("_", "-") for name in codes]
    statuses = [{"task": name.replace("_", "-"), "exit_code": code, "message": ""} for name, code in codes.items()]
    times = {"start_time": 1_000_020_000, "duration": 60_000}
    status = {"phase": phase, "tasks": tasks, "task_statuses": statuses, **times}
    return {"metadata": {"create_time": 1_000_000_000}, "status": status}


@pytest.mark.parametrize(
    ("phase", "state", "reason"),
    [
        ("Creating", State.PENDING, ""),
        ("Pending", State.QUEUED, ""),
        ("Running", State.RUNNING, ""),
        ("Terminating", State.CANCELLING, ""),
        ("Completed", State.SUCCEEDED, ""),
        ("Terminated", State.CANCELLED, ""),
        ("Failed", State.FAILED, "EXIT_CODE"),
        ("Abnormal", State.FAILED, "ABNORMAL"),
        ("A word of tomorrow", State.RUNNING, ""),
    ],
)
def test_phases(phase: str, state: State, reason: str) -> None:
    found = parse_job_status(job(phase))
    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize("told", [{}, {"status": None}, {"status": {"phase": None, "tasks": None}}])
def test_an_answer_that_says_nothing(told: dict[str, Any]) -> None:
    assert parse_job_status(told).state is State.RUNNING


@pytest.mark.parametrize(
    ("codes", "node", "code", "signal"),
    [
        ({"worker_0": 1, "worker_1": 7}, 0, 1, None),
        ({"worker_0": 143, "worker_1": 7}, 1, 7, None),
        ({"worker_0": 143, "worker_1": 137}, 0, None, 15),
        ({"worker_0": 0, "worker_1": "3"}, 1, 3, None),
    ],
)
def test_the_task_that_ended_by_itself_is_named(
    codes: dict[str, int], node: int, code: int | None, signal: int | None
) -> None:
    found = parse_job_status(job("Failed", **codes))
    assert found.failure is not None
    assert (found.failure.node, found.failure.exit_code, found.failure.signal) == (node, code, signal)
    assert found.reason == ("SIGNAL" if signal else "EXIT_CODE")


def test_what_the_agents_said_names_the_rank_and_not_its_victim() -> None:
    told = parse_job_status(job("Failed", worker_0=7, worker_1=7))
    found = apply_ends(told, {"worker-0": failed(0, 10.0, is_victim=True), "worker-1": failed(1, 10.3)})
    assert found.failure is not None
    assert (found.failure.node, found.failure.rank, found.failure.victims) == (1, 1, (0,))
    assert found.steps == told.steps


def test_what_an_agent_said_in_an_earlier_attempt_does_not_count() -> None:
    told = parse_job_status(job("Failed", worker_0=137, worker_1=143))
    assert apply_ends(told, {"worker-0": failed(0, 10.0), "worker-1": None}) == told


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["-- Process 1 terminated with the following error:"], "; its process 1 raised an exception"),
        (["x", "process 3 terminated with exit code 5"], "; its process 3 terminated with exit code 5"),
        (["process 0 terminated with signal SIGKILL"], "; its process 0 terminated with signal SIGKILL"),
        (["nothing of the kind"], ""),
    ],
)
def test_mp_spawn_names_the_process(lines: list[str], text: str) -> None:
    found = explain_failure(parse_job_status(job("Failed", worker_1=1)), lines)
    assert found.message == f"node 1 failed: exit code 1{text}"
    assert found.failure is not None and found.failure.last_lines == tuple(lines)


def test_how_long_it_waited_and_ran() -> None:
    spans = {step.name: (step.start, step.end) for step in parse_job_status(job("Completed")).steps}
    assert spans == {"queue": (1_000_000, 1_000_020), "training": (1_000_020, 1_000_080)}
    assert parse_job_status(job("Running")).steps[-1].end is None


@pytest.mark.parametrize(
    ("told", "seconds"),
    [(1_000, 1.0), ("1000", 1.0), ("1970-01-01T00:00:02Z", 2.0), ("1970-01-01T01:00:03+01:00", 3.0), ("soon", 0.0)],
)
def test_times_of_the_service(told: object, seconds: float) -> None:
    assert parse_moment(told) == seconds
