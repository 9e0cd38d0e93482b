"""A folder full of files named like Python's own modules: none of them runs, and no job fails because of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import Command

# Without those that Python itself looks for, in the current folder too, when it is started with `-m`.
NAMES = "argparse asyncio base64 copy ctypes csv datetime email enum glob hashlib http json locale logging "
NAMES += "multiprocessing pathlib pickle platform pydantic queue random re shutil signal socket ssl statistics "
NAMES += "string struct subprocess tarfile tempfile textwrap threading time traceback typer typing urllib uuid zipfile"


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Fill the current folder, and one that PYTHONPATH names; return where each file would leave a mark."""
    ran = tmp_path / "ran"
    for folder in (tmp_path, tmp_path / "library"):
        folder.mkdir(exist_ok=True)
        for name in NAMES.split():
            text = f"import sys\nopen({str(ran)!r}, 'a').write({name!r} + ' in ' + ' '.join(sys.orig_argv) + '\\n')\n"
            (folder / f"{name}.py").write_text(text + "raise ImportError('not what was meant')\n")
    return ran


def write_job(folder: Path, boot: str) -> Path:
    """Write a job with an input, so that data is brought, too."""
    for name in ("code", "inputs"):
        (folder / name).mkdir()
    (folder / "code" / "boot.py").write_text(boot)
    text = "name: p\nmode: spawn\ncode_dir: code\nboot_file: boot.py\ninputs: [{name: data, uri: inputs}]\n"
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def seen(marks: Path) -> str:
    return marks.read_text() if marks.exists() else ""


@pytest.mark.parametrize(
    "program", [[sys.executable, "-m", "jobsubmit"], [str(Path(sys.executable).parent / "jobsubmit")]]
)
def test_the_command_line_imports_nothing_from_here(program: list[str], marks: Path, tmp_path: Path) -> None:
    job = write_job(tmp_path, "print('trained')\n")
    done = subprocess.run(
        [*program, "create", job, "--follow"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert seen(marks) == ""
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stderr


def test_pythonpath_serves_the_users_code_and_none_of_ours(
    marks: Path, jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library" / "mine.py").write_text("NAME = 'from PYTHONPATH'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    job = write_job(tmp_path, "import mine\nprint(mine.NAME)\n")
    job_id = jobsubmit.json("create", job)["id"]
    jobsubmit("wait", job_id)
    assert seen(marks) == ""
    assert "from PYTHONPATH" in jobsubmit("logs", job_id).stdout
