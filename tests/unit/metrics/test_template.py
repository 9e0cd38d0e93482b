"""A line that comes again is read by the pattern of its first: with the same result as without."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from jobsubmit.metrics.collection import Metrics
from jobsubmit.metrics.template import pattern_of, split_line

OUTPUTS = sorted(Path(__file__).parents[2].glob("corpus/*outputs/*.json"))


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda path: path.stem)
def test_what_matches_the_pattern_of_a_line_has_its_template(output: Path) -> None:
    digits = random.Random(output.stem)
    texts = {split_line(line[4])[0]: line[4] for line in json.loads(output.read_text("utf-8"))["lines"]}
    for template, text in texts.items():
        pattern = pattern_of(text)
        if pattern is None or len(template) == 1:
            continue
        assert pattern.fullmatch(text)
        for other in (text, *(_with_another_number(pattern, text, digits) for _ in range(5))):
            if match := pattern.fullmatch(other):
                assert (template, [*map(float, match.groups())]) == split_line(other)


def _with_another_number(pattern: re.Pattern[str], text: str, digits: random.Random) -> str:
    match = pattern.fullmatch(text)
    assert match
    start, end = match.span(digits.randrange(pattern.groups) + 1)
    number = digits.choice(["7", "12", "345", "0.5", "12.75", "1e-05", "123456"])
    return text[:start] + match[0][start:end].rstrip("0123456789.e-") + number + text[end:]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("step 5, loss 0.5", "step 5, loss -0.5"),
        ("step 5, loss 0.5", "step 5, loss nan"),
        ("step 5, loss 0.5", "step 1,005, loss 0.5"),
        ("step 5, loss 0.5 (0.6)", "step 5, loss 0.5"),
        ("step 5, loss 0.5", "eval step 5, loss 0.5"),
        ("step 5, loss 0.5", "step 5, loss 0.5 at node1:5000"),
    ],
)
def test_what_is_another_line_does_not_match(text: str, other: str) -> None:
    pattern = pattern_of(text)
    assert pattern
    assert pattern.fullmatch(text)
    assert not pattern.fullmatch(other)


@pytest.mark.parametrize(
    "text", ["\x1b[32mstep 5\x1b[0m loss 0.5", "[5,12] loss 0.5", "step 5 loss nan", "step 5 saved a/5.pt", "[=====] 5"]
)
def test_a_line_whose_digits_decide_what_it_is_has_no_pattern(text: str) -> None:
    assert pattern_of(text) is None


def test_lines_that_come_often_are_read_like_the_first_ones() -> None:
    """Blanks, signs and clocks vary from line to line, and other lines stand between."""
    metrics = Metrics()
    values = [(-1) ** step * 10 / step for step in range(1, 2001)]
    for step, value in enumerate(values, 1):
        clock = (
            f"{step // 3600}:{step // 60 % 60:02}:{step % 60:02}" if step >= 3600 else f"{step // 60}:{step % 60:02}"
        )
        metrics.take(0, 0, step, f"[{step:5}/2000] {clock} loss: {value:8.4f}")
        metrics.take(0, 0, step, f"fetched shard {step}")
    (series,) = metrics.series()
    assert [(point.step, point.value) for point in series.points] == [
        (step, round(value, 4)) for step, value in enumerate(values, 1)
    ]
