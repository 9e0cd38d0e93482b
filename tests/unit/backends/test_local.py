"""Jobs of this machine, by what their processes left."""

from __future__ import annotations

import fcntl
import sys
import threading
from pathlib import Path

import pytest
from node_status import ended

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.agent.status_file import write_status
from jobsubmit.backends.local.backend import LocalBackend
from jobsubmit.backends.local.python import ChosenPython, find_missing
from jobsubmit.backends.models import JobHandle, State
from jobsubmit.config import load_settings
from jobsubmit.errors import BackendError

HANDLE = JobHandle("local", "a-1")


@pytest.mark.parametrize(("state", "may_be_deleted"), [("SUCCEEDED", True), ("RUNNING", False)])
def test_a_supervisor_may_take_a_moment_to_end_after_its_job(state: str, may_be_deleted: bool) -> None:
    settings = load_settings()
    files = JobDirectory(settings.job_dir(HANDLE.path))
    Path(files.path).mkdir(parents=True)
    write_status(files.path, ended(state))
    with Path(files.lock).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        release = threading.Timer(0.3, fcntl.flock, (lock, fcntl.LOCK_UN))
        release.start()
        if may_be_deleted:
            LocalBackend(settings).delete(HANDLE)
        else:
            with pytest.raises(BackendError, match="is still running"):
                LocalBackend(settings).delete(HANDLE)
        release.join()


def test_a_status_of_a_newer_version_is_not_guessed_at() -> None:
    settings = load_settings()
    files = JobDirectory(settings.job_dir(HANDLE.path))
    Path(files.path).mkdir(parents=True)
    Path(files.status).write_text('{"version": 2, "state": "SUCCEEDED", "restarts": {"of": "another form"}}')
    status = LocalBackend(settings).status(HANDLE)
    assert (status.state, status.reason) == (State.UNKNOWN, "NEWER")
    assert "newer version" in status.message


def test_a_module_in_the_current_folder_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").touch()
    link = tmp_path / "venv/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert find_missing(ChosenPython(str(link), "the active virtual environment"), ["own_package"]) == {"own_package"}
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert find_missing(ChosenPython(str(link), "the active virtual environment"), ["own_package"]) == set()
