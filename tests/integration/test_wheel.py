"""The wheel, installed in a clean environment outside the checkout, renders and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from command import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command in an environment that holds the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=PATIENCE)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(pip, check=True, timeout=PATIENCE, env={**os.environ, "PYTHONPATH": ""})
    return folder / "venv/bin/jobsubmit"


def run(command: Path, *args: str, cwd: Path) -> str:
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run([command, *args], cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_renders_what_the_checkout_renders(installed: Path, tmp_path: Path) -> None:
    for mode in ("spawn", "launch", "torchrun"):
        here = subprocess.run(
            [sys.executable, "-m", "jobsubmit", "render", "--mode", mode], cwd=tmp_path, capture_output=True, text=True
        )
        assert run(installed, "render", "--mode", mode, cwd=tmp_path) == here.stdout


def test_it_holds_the_page_for_assistants_and_speaks_chinese(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "# For programs and coding assistants" in run(installed, "docs", "--for-assistants", cwd=tmp_path)
    monkeypatch.setenv("JOBSUBMIT_LANG", "zh")
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "job.yaml").write_text("name: w\ncommand: python train.py\ncode_dir: .\n")
    assert "有效" in run(installed, "validate", "job.yaml", cwd=tmp_path)


def test_type_checkers_see_its_types(installed: Path) -> None:
    assert list(installed.parents[1].glob("lib/*/site-packages/jobsubmit/py.typed"))


def test_it_runs_a_job_and_needs_no_torch_itself(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/boot.py").write_text("import sys\nprint('hello from', sys.argv[-1])\n")
    (tmp_path / "job.yaml").write_text(
        "name: w\nmode: spawn\ncode_dir: code\nboot_file: boot.py\nresources: {nodes: 2}\n"
    )
    handle = run(installed, "create", "job.yaml", "--follow", cwd=tmp_path)
    logs = run(installed, "logs", handle.strip(), cwd=tmp_path)
    assert "[node 0] hello from --rank=0" in logs
    assert "[node 1] hello from --rank=1" in logs


def test_a_launcher_without_torch_is_refused_before_anything_is_sent(installed: Path, tmp_path: Path) -> None:
    run(installed, "init", cwd=tmp_path)
    environment = {**os.environ, "PATH": f"{installed.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        [installed, "create", "job.yaml"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 5
    assert "has no torch" in done.stderr
    assert not (tmp_path / "state").exists()


def test_the_starter_code_and_templates_are_in_the_source_archive(installed: Path) -> None:
    import tarfile

    (sdist,) = installed.parents[2].glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"templates/startup.sh.j2", "templates/jobs/spawn.yaml", "code/torch_ddp.py", "tests/conftest.py"} <= names
