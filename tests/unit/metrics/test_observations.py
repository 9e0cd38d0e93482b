"""What is said of a training that goes wrong by its own figures."""

from __future__ import annotations

from jobsubmit.metrics.collection import Metrics
from jobsubmit.metrics.observations import find_loss, observe


def read(*lines: str, rank: int = 0) -> Metrics:
    metrics = Metrics()
    for number, text in enumerate(lines):
        metrics.take(0, rank, float(number), text)
    return metrics


def test_a_good_training_has_no_notes() -> None:
    assert observe(read(*(f"step {step} loss {3 / (step + 1):.3f}" for step in range(100)))) == []


def test_a_loss_that_is_nan_from_some_step_on() -> None:
    lines = [f"step {step} loss {'nan' if step > 11 else 1 / (step + 1)}" for step in range(40)]
    assert observe(read(*lines, rank=2)) == ["rank 2: loss was nan for the first time, at step 12"]


def test_a_loss_that_does_not_move() -> None:
    lines = [f"step {step} loss {max(0.6931, 1 - step / 10):.4f}" for step in range(60)]
    assert observe(read(*lines)) == ["rank 0: loss has been 0.6931 in the last 56 values: it does not move"]


def test_steps_that_go_back_after_a_restart() -> None:
    steps = [*range(50), *range(30, 60)]
    assert observe(read(*(f"step {step} loss {3 / (step + 1):.3f}" for step in steps))) == [
        "rank 0: the steps went back from 49 to 30"
    ]


def test_a_new_epoch_is_no_step_back() -> None:
    lines = [
        f"epoch {epoch} step {step} loss {3 / (30 * epoch + step + 1):.3f}" for epoch in (1, 2) for step in range(30)
    ]
    assert observe(read(*lines)) == []


def test_the_loss_is_that_of_the_training() -> None:
    lines = [f"step {step} val_loss {1 / (step + 1)} aux_loss 0.{step} loss {step}.5 acc 3" for step in range(1, 5)]
    loss = find_loss(read(*lines).series())
    assert loss is not None
    assert (loss.name, loss.last.value) == ("loss", 4.5)
