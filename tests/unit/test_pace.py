"""Bounds of tests follow the pace of the machine, and only that."""

from pathlib import Path

from pace import IDLE_SECONDS, Pace


def test_a_bound_is_stretched_by_the_slowest_piece_of_work(tmp_path: Path) -> None:
    notes = tmp_path / "samples"
    notes.write_text(f"{IDLE_SECONDS / 2} 0.0\n")
    assert Pace(notes).stretched(10) == 10
    notes.write_text(f"{IDLE_SECONDS / 2} 0.0\n{IDLE_SECONDS * 3} 0.5\n{IDLE_SECONDS} 0.1\n{IDLE_SECONDS * 9}")
    assert Pace(notes).stretched(10) == 30.5
