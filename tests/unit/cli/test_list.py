"""The list of jobs on a terminal: no id is cut, and every job shows its state."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from jobsubmit.cli import list as listing
from jobsubmit.cli.console import out
from jobsubmit.config import load_settings
from jobsubmit.jobs.listing import Summary


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("letters", [5, 24, 64])
def test_no_id_is_cut_and_each_job_has_its_state(
    letters: int, width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ids = ["short-aaaaaa", "n" * letters + "-bbbbbb"]
    jobs = [
        Summary(name, name, "torchrun", "local", 2, time.time() - 5, f"local://{name}", "FAILED", "EXIT_CODE", "")
        for name in ids
    ]
    text = io.StringIO()
    monkeypatch.setattr(out, "stdout", Console(file=text, width=width), raising=False)
    out.stdout.print(listing._table(jobs, load_settings()))
    lines = text.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "".join(line.split(" ")[0] for line in lines[1:]) == "".join(ids)
    assert text.getvalue().count("FAILED (EXIT_CODE)") == len(ids)
    assert text.getvalue().count("5s\n") == len(ids)
    is_whole = len(ids[1]) + len("  FAILED (EXIT_CODE)  age") <= width
    assert (len(lines) == 1 + len(ids)) is is_whole  # only an id that leaves no room for the state has two lines
