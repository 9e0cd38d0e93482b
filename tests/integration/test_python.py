"""Which Python a job runs, what is installed for it, and what is done before the start."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from command import Command

SAYS = "import sys\nprint('prefix', sys.prefix)\n"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment that has a package of its own, and no torch."""
    folder = tmp_path_factory.mktemp("envs") / "other env"
    venv.create(folder, with_pip=False)
    (package,) = folder.glob("lib/python*/site-packages")
    (package / "only_there.py").write_text("name = 'only there'\n")
    return folder


def write(folder: Path, text: str, fields: str = "") -> None:
    (folder / "train.py").write_text(text)
    (folder / "job.yaml").write_text(f"name: py\ncode_dir: .\ncommand: python train.py\n{fields}")


@pytest.mark.parametrize("form", ["folder", "program", "other name"])
def test_the_python_of_the_job_file_runs_the_job(form: str, other: Path, jobsubmit: Command, tmp_path: Path) -> None:
    program = other / "bin/python"
    if form == "other name":
        program = other / "bin/python3"
    given = other if form == "folder" else program
    write(tmp_path, f"import only_there\n{SAYS}", f"backend: {{python: '{given}'}}\n")
    done = jobsubmit("create", "job.yaml", "--follow")
    assert f"prefix {other}" in done.stderr
    assert f"python of the nodes: {other}/bin/python" in done.stderr
    assert "backend.python in the job file" in done.stderr


def test_an_active_environment_runs_the_job(other: Path, jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, SAYS)
    done = jobsubmit("create", "job.yaml", "--follow", env={"VIRTUAL_ENV": str(other)})
    assert f"prefix {other}" in done.stderr
    assert "the active virtual environment" in done.stderr
    doctor = jobsubmit("doctor", env={"VIRTUAL_ENV": str(other)}).stdout
    assert f"{other}/bin/python (the active virtual environment)" in doctor


def test_a_launcher_needs_torch_in_that_python(other: Path, jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, SAYS)
    file = tmp_path / "job.yaml"
    file.write_text("name: py\nmode: torchrun\ncode_dir: .\nboot_file: train.py\n")
    refused = jobsubmit("create", "job.yaml", code=5, env={"VIRTUAL_ENV": str(other)})
    assert "has no torch" in refused.stderr
    assert "backend.python" in refused.stderr


def test_a_module_that_this_python_lacks_is_found_before(other: Path, jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, "import not_there_at_all\ntry:\n    import nor_this\nexcept ImportError:\n    pass\n")
    refused = jobsubmit("validate", "job.yaml", code=3)
    assert "train.py:1  the nodes' Python has no module not_there_at_all" in refused.stderr
    assert "requirements" in refused.stderr
    assert "nor_this" not in refused.stderr
    (tmp_path / "requirements.txt").write_text("numpy\nnot-there-at-all>=1\n")
    jobsubmit("validate", "job.yaml", "--set", "requirements=requirements.txt")
    write(tmp_path, "import only_there\n", f"backend: {{python: '{other}'}}\n")
    jobsubmit("validate", "job.yaml")


def test_doctor_says_what_it_does_not_know_of_a_python(jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, SAYS, "backend: {kind: local, python: /usr/bin/python3}\n")
    (line,) = [line for line in jobsubmit("doctor", "job.yaml").stdout.splitlines() if "torch" in line.split()[1]]
    assert "is not checked for /usr/bin/python3" in line


def test_checks_do_not_start_a_python_that_the_job_file_names(jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, "import requests\n", "backend: {kind: local, python: ./program}\n")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/was-run'\n")
    program.chmod(0o755)
    jobsubmit("validate", "job.yaml")
    jobsubmit("create", "job.yaml", "--dry-run")
    jobsubmit("doctor", "job.yaml")
    assert not (tmp_path / "was-run").exists()


def test_doctor_reads_the_version_of_torch_in_that_python(other: Path, jobsubmit: Command, tmp_path: Path) -> None:
    (site,) = other.glob("lib/python*/site-packages")
    (site / "torch-2.99.dist-info").mkdir()
    (site / "torch-2.99.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.99\n")
    write(tmp_path, SAYS, f"backend: {{python: '{other}'}}\n")
    assert f"2.99 for {other}/bin/python" in jobsubmit("doctor", "job.yaml").stdout
    shutil.rmtree(site / "torch-2.99.dist-info")


def test_a_module_that_was_not_found_says_by_which_python(jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, "name = 'not_there'\n__import__(name)\n")
    done = jobsubmit("create", "job.yaml", "--follow", code=100)
    assert f"the module not_there is not installed for {Path(sys.executable).with_name('python')}" in done.stderr
    assert f"or install it for {Path(sys.executable).with_name('python')}" in done.stderr
    assert "the package may have another name" in done.stderr


def test_a_path_that_is_no_python_is_refused(jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, SAYS, "backend: {python: ./nowhere/python}\n")
    refused = jobsubmit("create", "job.yaml", code=5)
    assert f"{tmp_path}/nowhere/python" in refused.stderr
    refused = jobsubmit("create", "job.yaml", "--set", "backend.python=python3", code=2)
    assert "must be a path" in refused.stderr


def test_setup_runs_once_per_node_before_the_start(jobsubmit: Command, tmp_path: Path) -> None:
    lines = 'setup: |\n  echo "it\'s $((1 + 1)) $NODE_RANK" >> ready\n  touch made\n'
    fields = lines + "resources: {nodes: 2, nproc_per_node: 1}\nrestarts: {max: 1, backoff: 0}\n"
    text = "import os, sys\nprint('ready:', open('ready').read())\nassert os.path.exists('made')\n"
    write(tmp_path, text + "sys.exit(os.environ['JOBSUBMIT_RESTART_COUNT'] == '0')\n", fields)
    done = jobsubmit("create", "job.yaml", "--follow")
    assert done.stderr.count("ready: it's 2 0\n") == 2
    assert done.stderr.count("ready: it's 2 1\n") == 2


def test_a_setup_that_fails_is_a_reason_of_its_own(jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, SAYS, "setup: |\n  echo compiling\n  (exit 7)\n  echo never\n")
    done = jobsubmit("create", "job.yaml", "--follow", code=100)
    assert "FAILED (SETUP_FAILED): node 0 could not be set up" in done.stderr
    assert "the job's `setup` failed with exit code 7" in done.stderr
    assert "never" not in done.stderr
    assert "prefix" not in done.stderr


def test_setup_is_data_for_the_shell_of_the_node(jobsubmit: Command, tmp_path: Path) -> None:
    write(tmp_path, SAYS, "setup: \"echo $(id) 'a b' `date`; true # '\"\n")
    script = tmp_path / "start.sh"
    script.write_text(jobsubmit("render", "job.yaml").stdout)
    assert "bash -e -o pipefail -c 'echo $(id)" in script.read_text()
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
