"""Goodput against a planted truth: within 2% of the wall time, each part."""

from __future__ import annotations

import pytest

from jobsubmit.report.goodput import AGAIN, BEFORE_STEPS, HANG, RESTART, STEPS, Position, measure_goodput
from jobsubmit.report.job_phases import CHECKPOINT, TRAINING, Phase


def phase(name: str, start: float, end: float | None, attempt: int = 0) -> Phase:
    return Phase(name, ((start, end),), attempt)


def steps(first: int, last: int, start: float, pace: float, every: int = 1) -> list[Position]:
    """Return the positions of steps that begin at a time: each is printed when it ends."""
    return [
        Position(start + (number - first + 1) * pace, number)
        for number in range(first, last + 1)
        if number % every == 0
    ]


def test_a_job_without_trouble() -> None:
    phases = [
        phase("queue", 0, 100),
        phase("fetch", 100, 130),
        phase("first output", 130, 150),
        phase(TRAINING, 150, 1000),
    ]
    found = measure_goodput(phases, steps(1, 800, 200, 1.0), begin=0, end=1010)
    assert found.knows_steps
    assert found.seconds[STEPS] == pytest.approx(800, abs=20)
    assert found.seconds["queue"] == pytest.approx(100)
    assert found.seconds["fetch"] == pytest.approx(30)
    assert found.seconds["first output"] == pytest.approx(20)
    assert found.seconds[BEFORE_STEPS] == pytest.approx(50, abs=20)  # it prints its settings, and loads its data
    assert found.total == pytest.approx(1010)
    assert found.share == pytest.approx(800 / 1010, abs=0.02)


@pytest.mark.parametrize("every", [1, 5])
def test_steps_that_a_restart_does_again_do_not_count(every: int) -> None:
    phases = [
        phase("first output", 0, 50),
        phase(TRAINING, 50, 560),
        phase("exit", 560, 570),
        phase("fetch", 600, 640, 1),
        phase(TRAINING, 650, 1250, 1),
    ]
    positions = [*steps(1, 500, 50, 1.0, every), *steps(401, 1000, 650, 1.0, every)]
    found = measure_goodput(phases, positions, begin=0, end=1250)
    assert found.seconds[STEPS] == pytest.approx(1000, abs=25)
    assert found.seconds[AGAIN] == pytest.approx(110, abs=25)  # 100 steps, and the 10 s until the failure was seen
    assert found.seconds[RESTART] == pytest.approx(30)
    assert found.total == pytest.approx(1250)


def test_checkpoints_are_no_steps() -> None:
    saves = Phase(CHECKPOINT, tuple((100.0 * n, 100.0 * n + 10) for n in range(1, 10)), 0)
    found = measure_goodput([phase(TRAINING, 0, 1000), saves], steps(1, 1000, 0, 1.0), begin=0, end=1000)
    assert found.seconds[CHECKPOINT] == pytest.approx(90)
    assert found.seconds[STEPS] == pytest.approx(910, abs=20)


def test_the_time_of_a_hang() -> None:
    found = measure_goodput([phase(TRAINING, 0, 1000)], steps(1, 400, 0, 1.0), begin=0, end=1000, hung=[1000.0])
    assert found.seconds[HANG] == pytest.approx(600)
    assert found.seconds[STEPS] == pytest.approx(400)


def test_a_hang_after_the_last_timed_step() -> None:
    """Timed steps end the training phase where the hang begins."""
    found = measure_goodput(
        [phase(TRAINING, 1, 400), phase("exit", 400, 1010)],
        steps(1, 400, 0, 1.0),
        begin=0,
        end=1010,
        hung=[1000.0],
    )
    assert found.seconds[HANG] == pytest.approx(600)
    assert found.seconds["exit"] == pytest.approx(10)
    assert found.seconds[STEPS] == pytest.approx(400, abs=5)


def test_lines_that_were_read_after_the_training() -> None:
    """Five steps may end before the first of their lines is read."""
    phases = [phase(TRAINING, 10.000, 10.005), phase("exit", 10.005, 11.0)]
    found = measure_goodput(phases, steps(1, 5, 10.1, 0.001), begin=0, end=11)
    assert found.knows_steps
    assert found.seconds[STEPS] == pytest.approx(0.005)
    assert found.seconds["exit"] == pytest.approx(0.995)


def test_late_lines_belong_to_the_attempt_that_printed_them() -> None:
    phases = [phase(TRAINING, 0, 50), phase("exit", 50, 52), phase("fetch", 60, 80, 1), phase(TRAINING, 80, 180, 1)]
    late = [Position(step.time + 0.5, step.step) for step in [*steps(1, 50, 0, 1.0), *steps(31, 130, 80, 1.0)]]
    found = measure_goodput(phases, late, begin=0, end=180)
    assert found.seconds[AGAIN] == pytest.approx(20, abs=1)
    assert found.seconds[STEPS] == pytest.approx(130, abs=2)


def test_without_steps_the_training_counts() -> None:
    found = measure_goodput([phase("queue", 0, 10), phase(TRAINING, 10, None)], [], begin=0, end=100)
    assert not found.knows_steps
    assert found.seconds == {STEPS: pytest.approx(90), "queue": pytest.approx(10)}


def test_a_job_that_never_began() -> None:
    assert measure_goodput([], [], begin=5, end=5).share is None
