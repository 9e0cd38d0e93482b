"""Totals that stand only in a configuration."""

from __future__ import annotations

import time

import pytest

from jobsubmit.metrics.configured_totals import ConfiguredTotals


def totals(*lines: str) -> tuple[int | None, int | None]:
    found = ConfiguredTotals()
    for line in lines:
        found.read(line)
    return found.epochs, found.steps


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("+ python main.py -a resnet50 --epochs 24 --batch-size 256", (24, None)),
        ("Namespace(batch_size=64, epochs=14, gamma=0.7, warmup_epochs=3)", (14, None)),
        ("Scheduled epochs: 30", (30, None)),
        ("Starting training for 20 epochs...", (20, None)),
        ("  Num Epochs = 3", (3, None)),
        ("  Total optimization steps = 1,350", (None, 1350)),
        ("  Total optimization steps = 1350", (None, 1350)),
        ("max_iters = 5000", (None, 5000)),
        ("  MAX_ITER: 9000", (None, 9000)),
        ("{'optimization': {'max_epoch': 15, 'max_update': 0}}", (15, None)),
        ("训练轮数: 60", (60, None)),
        ("python train.py trainer.max_steps=800", (None, 800)),
    ],
)
def test_a_total(line: str, expected: tuple[int | None, int | None]) -> None:
    assert totals(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "warmup_epochs=5, save_steps=500, eval_steps=100, start_epoch=2",
        "epoch: 3, step: 120",
        "Epoch 3/90 [120/391]",
        "eval: EvalArgs(interval=100, max_iters=100)",
        "val={'max_steps': 20}",
        "resuming from step=4000",
        "lr_decay_epochs=30",
        "max_iters = 5000.5",
    ],
)
def test_what_is_no_total(line: str) -> None:
    assert totals(line) == (None, None)


def test_a_bare_word_counts_if_there_is_only_one() -> None:
    assert totals('  "warmup_steps": 200', '  "steps": 3000') == (None, 3000)
    assert totals('  "steps": 3000', '  "steps": 100') == (None, None)


def test_the_first_total_counts() -> None:
    assert totals("epochs=90", "epochs=5") == (90, None)


def test_a_hostile_line_takes_no_time() -> None:
    begun = time.process_time()
    for part in ("eval(", "epochs", "--epochs ", "max_", "(epochs=3", "test {", "'"):
        totals((part * 20_000)[:20_000])
    totals("epochs=3" * 100_000)
    assert time.process_time() - begun < 1
