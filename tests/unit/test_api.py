"""The Python interface says and does what the command line does."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
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


EXPORTED = {
    *("cancel", "create", "delete", "events", "list_jobs", "load", "logs", "prepare", "render_script", "report_of"),
    *("rerun", "status", "wait"),
    *(
        "Failure",
        "Finding",
        "JobHandle",
        "JobPhase",
        "JobRecord",
        "JobStatus",
        "LoadedSpec",
        "LogLine",
        "LogQuery",
        "Phase",
    ),
    *("Prepared", "Problem", "Recovery", "Report", "Script", "State"),
    *("BackendError", "BundleError", "CancelledError", "CheckError", "JobNotFoundError", "JobSubmitError"),
    *("SpecError", "StoreError", "UsageError"),
}


def test_what_is_exported() -> None:
    assert set(jobsubmit.__all__) == EXPORTED
    assert set(dir(jobsubmit)) >= EXPORTED
    assert {name for name in EXPORTED if getattr(jobsubmit, name).__name__ != name} == set()
    with pytest.raises(AttributeError, match="nothing"):
        jobsubmit.nothing  # type: ignore[attr-defined] # noqa: B018


def test_every_type_of_a_signature_is_exported() -> None:
    functions = [value for name in EXPORTED if inspect.isfunction(value := getattr(jobsubmit, name))]
    shown = " ".join(str(inspect.signature(function)) for function in functions)
    named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", shown)) - {
        "Any",
        "False",
        "Iterator",
        "Mapping",
        "None",
        "Path",
        "Sequence",
    }
    assert named - {"EVERYTHING"} <= EXPORTED


def test_every_function_has_an_example_and_help_shows_it() -> None:
    text = pydoc.plain(pydoc.render_doc(jobsubmit))
    for name in EXPORTED:
        value = getattr(jobsubmit, name)
        if inspect.isfunction(value):
            assert f"jobsubmit.{name}(" in (value.__doc__ or ""), name
            assert f"{name}(" in text


def test_the_package_itself_loads_nothing() -> None:
    """Nodes import it too, where pydantic and the rest are not installed."""
    program = "import jobsubmit, sys; print(sorted(name for name in sys.modules if name.startswith('jobsubmit')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['jobsubmit']\n", done.stderr
