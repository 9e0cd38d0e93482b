"""Metrics by the regular expressions of a job file."""

from __future__ import annotations

from jobsubmit.metrics.collection import Metrics


def read(patterns: dict[str, str], *lines: str) -> Metrics:
    metrics = Metrics(patterns)
    for number, text in enumerate(lines):
        metrics.take(0, 0, float(number), text)
    return metrics


def test_a_pattern_reads_what_nobody_would_recognize() -> None:
    lines = [f"@@ {step} :: {8 / step:.3f} ~~" for step in range(1, 5)]
    found = read({"loss": r":: ([\d.]+)", "step": r"@@ (\d+)", "steps": r"of (\d+)"}, "12 of 40", *lines)
    (series,) = found.series()
    assert series.name == "loss"
    assert [(point.step, point.value) for point in series.points] == [(1, 8.0), (2, 4.0), (3, 2.667), (4, 2.0)]
    assert found.progress()[0, 0].step == 4
    assert found.share_done((0, 0)) == 0.1


def test_a_pattern_replaces_what_is_read_without_it() -> None:
    lines = [f"step {step} loss {3 / step:.2f} (mean loss {9 / step:.2f})" for step in range(1, 6)]
    found = read({"loss": r"mean loss ([\d.]+)"}, *lines)
    loss = {series.name: series for series in found.series()}["loss"]
    assert [point.value for point in loss.points] == [9.0, 4.5, 3.0, 2.25, 1.8]
    assert [point.step for point in loss.points] == [1, 2, 3, 4, 5]


def test_what_is_no_number_is_no_value() -> None:
    assert read({"loss": r"loss=(\S+)"}, "loss=--", "loss=", "nothing").series() == []
    (series,) = read({"loss": r"loss=(\S+)"}, "loss=nan", "loss=1,234.5").series()
    assert [str(point.value) for point in series.points] == ["nan", "1234.5"]
