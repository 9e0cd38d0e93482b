"""What the page of all jobs knows of jobs that come and go."""

from __future__ import annotations

from pathlib import Path

from jobsubmit.config import load_settings
from jobsubmit.jobs.records import JobRecord, JobRecords
from jobsubmit.ui.job_index import JobIndex

RECORD = JobRecord("a-1", "a", "torchrun", "local", 1, 0.0, "code", None, "", handle="local://a-1")


def test_a_job_that_was_being_submitted_at_the_last_look_is_seen(tmp_path: Path) -> None:
    settings = load_settings({"JOBSUBMIT_STATE_DIR": str(tmp_path)})
    records, index = JobRecords(settings), JobIndex(settings)
    index._look()
    records.directory(RECORD.id).mkdir(parents=True)
    index._look()
    assert list(index.jobs) == []
    records.save(RECORD)
    index._look()
    assert [job.id for job in index.jobs] == [RECORD.id]
    assert records.remove(RECORD)
    index._look()
    assert list(index.jobs) == []
