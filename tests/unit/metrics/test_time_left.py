"""When a training ends, by what it has printed so far: asked at every line after the first tenth."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsubmit.metrics.collection import Metrics

STARTUP, PACE, PAUSE = 40.0, 0.5, 12.0  # seconds
Lines = list[tuple[float, str]]


class Clock:
    """The time of a training whose steps take about PACE, the first ones longer."""

    def __init__(self) -> None:
        self.time, self.steps, self.random = STARTUP, 0, random.Random(7)

    def step(self) -> float:
        self.time += PACE * self.random.lognormvariate(0, 0.1) * (8 if self.steps < 3 else 1)
        self.steps += 1
        return self.time


def global_steps() -> Lines:
    clock = Clock()
    times = [clock.step() for _ in range(2000)]
    return [(times[step], f"step {step}/2000 loss {3 / (step + 1):.4f}") for step in range(10, 2000, 10)]


def total_in_the_configuration() -> Lines:
    clock = Clock()
    times = [clock.step() for _ in range(2000)]
    lines = [(0.0, "max_iters = 2000"), (0.1, "learning_rate = 0.0006")]
    return lines + [(times[step], f"iter {step}: loss {3 / (step + 1):.4f}, time 500ms") for step in range(0, 2000, 10)]


def steps_of_each_epoch() -> Lines:
    clock, lines = Clock(), []
    for epoch in range(20):
        for step in range(100):
            clock.step()
            if step % 10 == 0:
                lines.append((clock.time, f"Epoch: [{epoch}/20][{step}/100] Loss {2 / (epoch + 1):.3f}"))
        clock.time += PAUSE
        lines.append((clock.time, f"Test: [10/10] Loss {2.5 / (epoch + 1):.3f}"))
    return lines


def only_epochs() -> Lines:
    clock, lines = Clock(), []
    for epoch in range(1, 41):
        for _ in range(30):
            clock.step()
        lines.append((clock.time, f"Epoch {epoch}/40, loss {2 / epoch:.3f}"))
    return lines


def bar_of_all_steps() -> Lines:
    clock, lines = Clock(), []
    for step in range(1, 1501):
        clock.step()
        if step % 2 == 0:
            lines.append((clock.time, f"{step // 15:3}%|███       | {step}/1500 [00:10<01:00,  2.00it/s]"))
        if step % 20 == 0:
            text = f"{{'loss': {3 / step:.4f}, 'learning_rate': 4.5e-05, 'epoch': {step / 500:.2f}}}"
            lines.append((clock.time, text))
    return lines


def a_restart_in_the_middle() -> Lines:
    lines, time = [], STARTUP
    for first, last in ((0, 700), (600, 2000)):
        for step in range(first, last):
            time += PACE
            if step % 10 == 0:
                lines.append((time, f"step {step}/2000 loss {3 / (step + 1):.4f}"))
        time += 300
    return lines


def asked(lines: Lines, after: float) -> Iterator[tuple[float, float | None]]:
    """Yield the time of each line after a share of all time, and the end that is expected then."""
    metrics = Metrics()
    for time, text in lines:
        metrics.take(0, 0, time, text)
        if time > lines[-1][0] * after:
            yield time, metrics.end()


@pytest.mark.parametrize(
    ("training", "after"),
    [
        (global_steps, 0.15),
        (total_in_the_configuration, 0.15),
        (steps_of_each_epoch, 0.2),
        (only_epochs, 0.2),
        (bar_of_all_steps, 0.15),
        (a_restart_in_the_middle, 0.7),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_time_left_is_right_within_a_tenth(training, after: float) -> None:  # type: ignore[no-untyped-def]
    lines = training()
    true_end = lines[-1][0] + (lines[-1][0] - lines[-2][0])
    for time, end in asked(lines, after):
        assert end is not None
        assert abs(end - true_end) <= 0.1 * (true_end - time) + 2 * PAUSE


def test_without_a_total_nothing_is_guessed() -> None:
    metrics = Metrics()
    for step in range(200):
        metrics.take(0, 0, float(step), f"step {step} loss {3 / (step + 1):.4f}")
    assert metrics.end() is None
    assert metrics.share_done((0, 0)) is None


@pytest.mark.parametrize("training", [global_steps, steps_of_each_epoch, only_epochs], ids=lambda value: value.__name__)
def test_the_share_grows_to_all(training) -> None:  # type: ignore[no-untyped-def]
    metrics = Metrics()
    shares: list[float] = []
    for time, text in training():
        metrics.take(0, 0, time, text)
        if (0, 0) in metrics.progress():
            shares.append(metrics.share_done((0, 0)) or 0.0)
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    assert shares[-1] > 0.95


def test_a_long_output_takes_bounded_memory() -> None:
    metrics = Metrics()
    for step in range(30_000):
        metrics.take(0, 0, step * PACE, f"step {step}/60000 loss {3 / (step + 1):.4f}")
    assert len(metrics.positions((0, 0))) <= 2001
    assert metrics.end() == pytest.approx(60_000 * PACE, rel=0.01)


TIMES = sorted((Path(__file__).parents[2] / "corpus/times").glob("*.json"))
WRONG = {
    "a3_thousands_restart": "it restarts later: nobody can know",
    "h2_megatron_restart": "it restarts later: nobody can know",
    "k4_detectron2_eta": "its first validation comes after the first tenth",
    "n2_wenet_no_batch_total": "the number of batches is nowhere",
    "o3_litgpt_iter_and_step": "its total counts optimizer steps, its counter micro-batches",
}


@pytest.mark.parametrize("file", TIMES, ids=lambda file: file.stem)
def test_the_time_left_of_whole_trainings(file: Path) -> None:
    """After 10% of the steps, then after 10% and 25% of the time that is left, it is right within 10%."""
    case = json.loads(file.read_text())
    begin, true_end = case["steps_10_percent_at"], case["trained_until"]
    moments = [begin + (true_end - begin) * share for share in (0.02, 0.1, 0.25)]
    metrics, errors = Metrics(), []
    for time, node, rank, _, text in case["lines"]:
        while moments and time > moments[0]:
            end, moment = metrics.end(), moments.pop(0)
            errors.append(None if end is None else (end - true_end) / (true_end - moment))
        metrics.take(node, rank, time, text)
    assert errors
    if case["total_unknown"]:
        assert errors == [None] * len(errors)
    elif file.stem not in WRONG:
        assert all(error is not None and abs(error) <= 0.1 for error in errors), errors
