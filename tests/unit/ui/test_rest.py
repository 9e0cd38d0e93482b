"""The pages of jobs in which nothing happens cost next to nothing, on a slow machine too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jobsubmit.backends.models import LogQuery
from jobsubmit.backends.shared import log_reader
from jobsubmit.config import load_settings
from jobsubmit.ui.job_index import JobIndex

SLOW_SECONDS = 0.005  # of CPU time


class OverError(Exception):
    """Enough was seen."""


class Pauses(list[float]):
    """Takes the place of time.sleep."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)
        if len(self) == 4:
            raise OverError


def work() -> None:
    began = time.thread_time()
    while time.thread_time() - began < SLOW_SECONDS:
        pass


def test_slow_looks_at_the_jobs_are_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses()
    monkeypatch.setattr("jobsubmit.ui.job_index.time.sleep", pauses)
    monkeypatch.setattr(JobIndex, "_look", lambda _: work())
    monkeypatch.setattr(JobIndex, "_pause", lambda _: 1.0)
    monkeypatch.setattr(JobIndex, "_read_trainings", lambda _: None)
    index = JobIndex(load_settings({"JOBSUBMIT_STATE_DIR": str(tmp_path)}))
    index.wait(-1, 0)
    with pytest.raises(OverError):
        index._run()
    assert pauses[0] == 1.0
    assert all(1.2 <= pause <= 3.0 for pause in pauses[1:])


def test_slow_looks_at_a_silent_log_are_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses()
    monkeypatch.setattr("jobsubmit.backends.shared.log_reader.time.sleep", pauses)
    monkeypatch.setattr(log_reader, "_SILENT_SECONDS", 0.0)

    def folders() -> list[Path]:
        work()
        return [tmp_path]

    with pytest.raises(OverError):
        list(log_reader.read_lines(folders, LogQuery(), lambda: True))
    assert all(pause == 1.0 for pause in pauses)
