"""The Python interface says and does what the command line does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jobsubmit
from jobsubmit.backends.models import State
from jobsubmit.errors import JobNotFoundError, SpecError


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "boot.py").write_text("import sys\nprint('got', *sys.argv[1:2])\n")
    return {
        "name": "api",
        "mode": "spawn",
        "code_dir": str(tmp_path),
        "boot_file": "boot.py",
        "hyperparameters": {"lr": 0.1},
    }


def test_a_job_from_a_mapping(job: dict[str, object]) -> None:
    loaded = jobsubmit.load(job)
    prepared = jobsubmit.prepare(loaded, job_id="fixed")
    assert prepared.script == jobsubmit.render_script(loaded)
    assert prepared.request == jobsubmit.prepare(loaded, job_id="fixed").request
    handle = jobsubmit.create(loaded)
    status = jobsubmit.wait(handle, timeout=30)
    assert status.state is State.SUCCEEDED
    (line,) = jobsubmit.logs(handle, jobsubmit.LogQuery(grep=re.compile("got")))
    assert (line.node, line.rank, line.stream) == (0, None, "stdout")
    assert [phase.name for phase in jobsubmit.report_of(handle).phases][:3] == ["bundle", "check", "upload"]
    again = jobsubmit.rerun(handle)
    assert jobsubmit.wait(again, timeout=30).state is State.SUCCEEDED
    jobsubmit.delete(again)
    assert [record.id for record in jobsubmit.list_jobs()] == [handle.path]
    assert [line.text for line in jobsubmit.logs(handle)][-1] == "got --lr=0.1"
    assert jobsubmit.status("api").state is State.SUCCEEDED
    assert [record.handle for record in jobsubmit.list_jobs()] == [str(handle)]
    jobsubmit.cancel(handle)
    assert jobsubmit.status(str(handle)).state is State.SUCCEEDED


def test_a_job_from_a_file_with_assignments(job: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: api\nmode: spawn\ncode_dir: .\nboot_file: boot.py\n")
    loaded = jobsubmit.load(tmp_path / "job.yaml", ["hyperparameters.lr=0.2"])
    assert loaded.spec.hyperparameters == {"lr": 0.2}


def test_errors_are_exceptions_with_where_and_hint(job: dict[str, object]) -> None:
    with pytest.raises(SpecError) as caught:
        jobsubmit.load({**job, "image": "x", "nmae": 1})
    assert [problem.field for problem in caught.value.problems] == ["image", "nmae"]
    with pytest.raises(JobNotFoundError):
        jobsubmit.status("nobody")
