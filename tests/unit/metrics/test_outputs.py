"""What is read from the outputs in tests/corpus/outputs: how programs print their training, and what a reader sees."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from jobsubmit.metrics.collection import Metrics

OUTPUTS = sorted((Path(__file__).parents[2] / "corpus/outputs").glob("*.json"))
EXACT_SHARE = 0.955
PROGRESS_SHARE = 0.96


def read(case: dict[str, Any]) -> Metrics:
    metrics = Metrics()
    for time, node, rank, _, text in case["lines"]:
        for _ in metrics.read((node, rank), time, text):
            pass
    return metrics


def are_equal(ours: list[float], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(value, float(other), rel_tol=1e-9) or (math.isnan(value) and math.isnan(float(other)))
        for value, other in zip(ours, theirs, strict=True)
    )


def is_exact(points: list[Any], truth: list[list[Any]]) -> bool:
    """Return whether values are those of the truth, with the step and the epoch that stand on the same line."""
    return are_equal([point.value for point in points], [value for _, _, value in truth]) and all(
        step in (None, point.step) and (epoch is None or point.epoch == epoch)
        for point, (epoch, step, _) in zip(points, truth, strict=True)
    )


@pytest.mark.parametrize("file", OUTPUTS, ids=lambda file: file.stem)
def test_nothing_is_invented(file: Path) -> None:
    case = json.loads(file.read_text())
    metrics = read(case)
    known = {(series["rank"], series["name"]) for series in case["series"]}
    optional = case.get("optional", ())
    found = {(series.source[1], series.name) for series in metrics.series() if series.name not in optional}
    assert found <= known
    assert {rank for _, rank in metrics.progress()} <= {progress["rank"] for progress in case["progress"]}


def test_most_series_are_exact() -> None:
    wrong, count = [], 0
    for file in OUTPUTS:
        case = json.loads(file.read_text())
        found = {(series.source[1], series.name): series.points for series in read(case).series()}
        count += len(case["series"])
        for truth in case["series"]:
            if not is_exact(found.get((truth["rank"], truth["name"]), []), truth["points"]):
                wrong.append(f"{file.stem}: {truth['name']} of rank {truth['rank']}")
    assert 1 - len(wrong) / count >= EXACT_SHARE, "\n".join(wrong)


def test_most_progress_is_exact() -> None:
    wrong, count = [], 0
    for file in OUTPUTS:
        case = json.loads(file.read_text())
        found = {rank: progress for (_, rank), progress in read(case).progress().items()}
        for truth in case["progress"]:
            count += 1
            ours = found.get(truth["rank"])
            if ours is None or (ours.step, ours.epoch) != (truth["step"], truth["epoch"]):
                wrong.append(f"{file.stem}, rank {truth['rank']}: {ours}, not {truth}")
    assert 1 - len(wrong) / count >= PROGRESS_SHARE, "\n".join(wrong)


def test_outputs_of_other_tools_are_read_as_well_as_before() -> None:
    """Outputs that people wrote without having seen the rules: at first sight, far fewer series were exact."""
    exact, invented = 0, []
    for file in sorted((Path(__file__).parents[2] / "corpus/more_outputs").glob("*.json")):
        case = json.loads(file.read_text())
        found = {(series.source[1], series.name): series.points for series in read(case).series()}
        known = {(truth["rank"], truth["name"]): truth["points"] for truth in case["series"]}
        exact += sum(is_exact(found.get(key, []), points) for key, points in known.items())
        optional = case.get("optional", ())
        invented += [
            f"{file.stem}: {name}" for rank, name in found if (rank, name) not in known and name not in optional
        ]
    assert exact >= 1447
    assert invented == ["pub_hifigan_jik876: error"]  # it is called `Mel-Spec. Error` there
