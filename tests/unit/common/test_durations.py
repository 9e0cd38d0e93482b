"""Times that people, Slurm, Kubernetes and ModelArts write."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from jobsubmit.common.durations import age_text, parse_time

TEN = datetime(2026, 11, 21, 10, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T10:00:00Z", TEN),
        ("2026-11-21t10:00z", TEN),
        ("2026-11-21T11:00:00+01:00", TEN),
        ("2026-11-21T18:00:00+0800", TEN),
        ("2026-11-21 05-05", TEN),
        ("20261121T100000Z", TEN),
        ("2026-11-21T10:00:00.250000000Z", TEN + 0.25),
        ("2026-11-21T10:00:00,5Z", TEN + 0.5),
    ],
)
def test_times_with_a_zone(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["2026-11-21", "2026-11-21T10", "2026-11-21 10:30", "2026-11-21T10:30:59"])
def test_times_without_a_zone_are_this_machines(text: str) -> None:
    assert parse_time(text) == datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    "text", ["", "soon", "2026", "2026-13-01", "2026-11-21T25", "2026-11-21T10:00:00+99:00", "None"]
)
def test_what_is_no_time(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (0.4, "0s"), (59, "59s"), (61, "1m"), (7200, "2h"), (86400 * 12.5, "12d")]
)
def test_an_age_is_one_number(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
