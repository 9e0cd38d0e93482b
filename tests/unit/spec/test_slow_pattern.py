"""Patterns that can take exponential time are told from those that cannot."""

from __future__ import annotations

import pytest

from jobsubmit.spec.slow_pattern import can_take_exponential_time


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a*)*b",
        r"(\w+\s*)+:",
        r"loss=((\d+)*)x",
        "(a|a)*b",
        "(a|aa)+b",
        r"(?:.*,)*x",
        "(?:(?:ab)+)+c",
        "x(?=(a+)+b)",
        r"([0-9]+\.?[0-9]*)+e",
        "(a{1,100})+b",
    ],
)
def test_a_slow_pattern_is_noticed(pattern: str) -> None:
    assert can_take_exponential_time(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "train=([0-9.]+)",
        r"loss\s*[:=]\s*([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)",
        r"(?:\d+,)*(\d+)",
        r"(?:\w+ )*loss (\d+)",
        "(?:foo|fa|bar)+ (x)",
        "NCCL error|CUDA error",
        r".*step (\d+)/(\d+).*",
        r"^\[(?:[^\]]*)\] (\d+)$",
        r"(a)\1+",
        "<([0-9]+)/",
        "(?i:error)+",
        "loss 值 ([0-9.]+)",
        "(a+)b(c+)",
    ],
)
def test_a_usual_pattern_is_none(pattern: str) -> None:
    assert not can_take_exponential_time(pattern)
