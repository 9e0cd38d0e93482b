"""Folders for what is needed for a moment: none outlives whoever made it for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jobsubmit.common.scratch import scratch_folder

HOLDS_ONE = """
import sys, time
from jobsubmit.common.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_goes_with_its_owner(below: Path) -> None:
    with scratch_folder() as folder:
        (folder / "file").write_text("x")
        assert folder.parent == below
    assert not list(below.iterdir())


def test_that_of_a_killed_process_goes_with_the_next_but_no_younger_and_no_used_one(below: Path) -> None:
    env = {**os.environ, "TMPDIR": str(below)}
    with subprocess.Popen([sys.executable, "-c", HOLDS_ONE], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        left = Path(process.stdout.readline().strip())
        old = (time.time() - 3600,) * 2
        os.utime(left, old)
        with scratch_folder():
            assert left.exists()  # its owner lives
        process.send_signal(signal.SIGKILL)
        process.wait()
    os.utime(left)
    with scratch_folder():
        assert left.exists()  # so young that its owner may still take its lock
    os.utime(left, old)
    with scratch_folder():
        assert not left.exists()
    assert not list(below.iterdir())
