"""What a page knows of a job's log when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsubmit.backends.models import LogLine
from jobsubmit.config import load_settings
from jobsubmit.jobs.records import JobRecord
from jobsubmit.ui.job_watch import JobWatch

RECORD = JobRecord("a-1", "a", "torchrun", "local", 1, 0.0, "code", None, "", handle="local://a-1")


def test_a_page_waits_for_a_log_that_is_slow_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line_is_due, log_goes_on = threading.Event(), threading.Event()

    def logs(*_: object, follow: bool) -> Iterator[LogLine]:
        assert follow
        for number in range(3):
            line_is_due.wait(10)
            yield LogLine(0, None, "stdout", 0.0, f"line {number}")
        log_goes_on.wait(10)

    monkeypatch.setattr("jobsubmit.jobs.monitor.logs", logs)
    watch = JobWatch(RECORD, load_settings({"JOBSUBMIT_STATE_DIR": str(tmp_path)}))
    threading.Timer(0.5, line_is_due.set).start()
    watch.wait_for_log(3)  # of a log that has more lines than a page
    assert watch.spool.count == 3
    threading.Timer(0.5, log_goes_on.set).start()
    watch.wait_for_log(500)
    assert watch.read_all
    watch.close()
