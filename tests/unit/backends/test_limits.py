"""What no engine, or this one, can carry is told with field, number and remedy, by `validate`, which asks nobody."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import Command

IMAGE = {"image": "pytorch:2.3"}
BUCKET = {"store": {"uri": "s3://bucket/jobs"}}
VOLCANO = {**IMAGE, **BUCKET, "backend": {"kind": "volcano"}}
SLURM = {"backend": {"kind": "slurm"}}
VOLUME = {"kind": "volcano", "volumes": [{"claim": "c", "path": "/kept"}]}
# One argument or variable of Linux, with the NUL at its end.
LONGEST = 131_072


def write_job(folder: Path, fields: dict[str, Any], files: int = 0) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print('trained')\n")
    for number in range(files):
        (folder / "code" / f"file-{number:05}").touch()
    base = {"mode": "torchrun", "name": "limited", "code_dir": "code", "boot_file": "train.py"}
    (folder / "job.yaml").write_text(json.dumps({**base, **fields}, indent=1))


@pytest.mark.parametrize(
    ("fields", "files", "told"),
    [
        ({"hyperparameters": {"text": "x" * LONGEST}}, 0, ("hyperparameters.text", "131,080", "131,072", "in a file")),
        ({"env": {"TEXT": "é" * (LONGEST // 2)}}, 0, ("env.TEXT", "131,078", "131,072", "in a file")),
        ({"boot_file": None, "command": ["echo", "x" * LONGEST]}, 0, ("command", "131,073", "131,072", "in a file")),
        (
            {"boot_file": None, "command": ["pyhton", "train.py"]},
            0,
            ("command", "this machine has no program pyhton", "correct its name"),
        ),
        ({**SLURM, **BUCKET, "layout": "tree"}, 400, ("layout", "401 files", "limit is 100,000", "layout: archive")),
        (
            {**SLURM, "inputs": [{"name": "data", "uri": "s3://bucket/d"}]},
            0,
            ("inputs", "data: s3://bucket/d is in a bucket", "jobsubmit download"),
        ),
        ({**VOLCANO, "image": None}, 0, ("image", "is required", "set it to one with python and torch")),
        ({**VOLCANO, "store": {"uri": "store"}}, 0, ("store", "cannot see the folder", "s3://bucket/prefix")),
        ({**VOLCANO, "checkpoint_dir": "kept"}, 0, ("checkpoint_dir", "no volume of the pods", "backend.volumes")),
        (
            {
                **VOLCANO,
                "checkpoint_dir": "/data/kept",
                "backend": {"kind": "volcano", "volumes": [{"path": "/data", "claim": "data", "read_only": True}]},
            },
            0,
            ("checkpoint_dir", "may not write to", "remove read_only"),
        ),
        (
            {**VOLCANO, "resources": {"nodes": 6000}},
            0,
            ("resources.nodes", "6,000 nodes", "limit is 115,000", "at most about 4,100 nodes"),
        ),
        ({**VOLCANO, "layout": "tree"}, 2700, ("layout", "2,701 files", "1,048,576", "layout: archive")),
        (
            {**VOLCANO, "env": {f"E{n}": "x" * 100_000 for n in range(10)}},
            0,
            ("env", "configmap.yaml", "1,048,576", "in a file"),
        ),
        (
            {**VOLCANO, "env": {f"E{n}": "x" * 100_000 for n in range(8)}},
            0,
            ("env", "vcjob.yaml", "1,572,864", "in a file"),
        ),
    ],
)
def test_each_is_told_with_field_number_and_remedy(
    fields: dict[str, Any], files: int, told: tuple[str, ...], jobsubmit: Command, tmp_path: Path
) -> None:
    write_job(tmp_path, fields, files)
    done = jobsubmit("validate", "job.yaml", code=3)
    where, *texts = told
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error: job.yaml:", "job.yaml:"))]
    assert [line for line in lines if f"  {where}: " in line and texts[0] in line], done.stderr[:2000]
    for text in texts:
        assert text in done.stderr
    again = jobsubmit("create", "job.yaml", "--no-check", code=3)
    assert texts[0] in again.stderr
    assert "--no-check" not in again.stderr
    assert jobsubmit.json("list") == []


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ({"hyperparameters": {"text": "x" * (LONGEST - len("--text=") - 1)}}, 0),
        ({**SLURM, **BUCKET}, 400),
        ({**SLURM, **BUCKET, "layout": "tree"}, 100),
        (VOLCANO, 400),
        ({**VOLCANO, "resources": {"nodes": 4096}}, 0),
        ({**VOLCANO, "env": {f"E{n}": "x" * 100_000 for n in range(7)}}, 0),
        ({**VOLCANO, "checkpoint_dir": "/kept/x", "backend": VOLUME}, 0),
    ],
)
def test_what_just_fits_is_let_through(fields: dict[str, Any], files: int, jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, fields, files)
    told = jobsubmit.json("validate", "job.yaml")
    assert [finding for finding in told["findings"] if finding["check"].endswith("limit")] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["bash", "-c", "pyhton train.py"]},
        {"command": ["./start", "train.py"]},
        {"command": ["pyhton", "train.py"], "setup": "pip install pyhton"},
        {"command": ["pyhton", "train.py"], "env": {"PATH": "/opt/pyhton/bin"}},
        {"command": ["pyhton", "train.py"], **SLURM},
    ],
)
def test_a_program_that_may_be_there_is_not_refused(fields: dict[str, Any], jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"boot_file": None, **fields})
    told = jobsubmit.json("validate", "job.yaml")
    assert [finding for finding in told["findings"] if finding["level"] == "error"] == []


def test_where_path_has_nothing_the_missing_bash_is_the_only_error(
    jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path, {"boot_file": None, "command": ["sleep", "1"]})
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = jobsubmit("create", "job.yaml", code=None)
    assert done.returncode != 0
    assert "bash is not on PATH" in done.stderr
    assert "no program" not in done.stdout + done.stderr


def test_bundle_tells_its_limits_and_no_others(jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {**VOLCANO, "image": None, "layout": "tree"}, 2700)
    told = jobsubmit.json("bundle", "job.yaml", code=3)
    (limit,) = told["limits"]
    assert "2,701 files" in limit["text"]
    assert told["secrets"] == []
    done = jobsubmit("bundle", "job.yaml", code=3)
    assert "but the limit is 1,048,576" in done.stderr
    assert "image" not in done.stderr
    assert jobsubmit.json("bundle", "job.yaml", "--set", "layout=archive")["limits"] == []


def test_a_secret_that_is_too_long_is_told_before_anything_is_sent(jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"secrets": {"TOKEN": "env:BIG"}, **{"store": {"uri": "store"}}})
    done = jobsubmit("create", "job.yaml", "--no-check", code=3, env={"BIG": "x" * 131_066})
    assert "secrets.TOKEN  one argument or variable: 131,073 bytes, but the limit is 131,072" in done.stderr
    assert "xxx" not in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"outputs": [{"name": "out", "uri": "s3://bucket/o"}]}, "; after the job, copy that to the bucket: jobsubmit"),
        ({"checkpoint_dir": "s3://bucket/c"}, "checkpoint_dir: s3://bucket/c is in a bucket"),
    ],
)
def test_what_a_job_writes_belongs_in_a_folder_of_all_nodes(
    fields: dict[str, Any], hint: str, jobsubmit: Command, tmp_path: Path
) -> None:
    write_job(tmp_path, {**SLURM, **fields})
    refused = jobsubmit("validate", "job.yaml", code=3).stderr
    assert "hint: set it to a folder that all nodes see, on a shared file system" in refused
    assert "download" not in refused
    assert hint in refused


@pytest.mark.parametrize("kind", ["volcano", "slurm"])
def test_data_that_only_nodes_see_is_not_looked_for_here(kind: str, jobsubmit: Command, tmp_path: Path) -> None:
    backend = {**VOLUME, "kind": kind} if kind == "volcano" else {"kind": kind}
    write_job(tmp_path, {**VOLCANO, "backend": backend, "inputs": [{"name": "data", "uri": "/kept/imagenet"}]})
    jobsubmit("validate", "job.yaml")


def test_the_longest_argument_is_the_kernels() -> None:
    assert subprocess.run(["true", "x" * (LONGEST - 1)], check=False).returncode == 0
    with pytest.raises(OSError, match="too long") as refused:
        subprocess.run(["true", "x" * LONGEST], check=False)
    assert refused.value.errno == errno.E2BIG


def test_a_doubt_about_code_can_be_overruled_and_says_how(jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"boot_file": "gone.py"})
    assert "if the check is wrong about your code, use --no-check" in jobsubmit("create", "job.yaml", code=3).stderr


@pytest.mark.parametrize(
    ("fields", "field", "name"),
    [
        ({"mode": "torchrun", "image": "pytorch:2.3"}, "image", "pytorch:2.3"),
        ({"mode": "spawn", "framework": {"name": "PyTorch", "version": "2.1"}}, "framework", "PyTorch"),
    ],
)
def test_a_slurm_job_that_pins_what_it_runs_in_is_warned_of(
    fields: dict[str, Any], field: str, name: str, jobsubmit: Command, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print('x')\n")
    job = {"name": "j", "code_dir": "code", "boot_file": "main.py", "backend": {"kind": "slurm"}, **fields}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    for command in (("validate", "job.yaml"), ("create", "job.yaml", "--dry-run")):
        said = jobsubmit(*command).stderr
        assert "warning: " in said
        assert f"{field}: the Slurm backend starts no containers" in said
        assert f"the software of its nodes, not {name}" in said
        assert f"note: {field}" not in said


def test_status_repeats_what_the_job_was_warned_of(jobsubmit: Command, tmp_path: Path) -> None:
    records = sorted((Path(__file__).parents[2] / "corpus/records").glob("*/local"))[-1]
    shutil.copytree(records, tmp_path / "state")
    file = tmp_path / "state/jobs/well-aaaaaa/record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "warnings": ["job.yaml:3  image: not used"]}))
    assert "warning: job.yaml:3  image: not used" in jobsubmit("status", "well-aaaaaa").stdout
    assert jobsubmit.json("status", "well-aaaaaa")["warnings"] == ["job.yaml:3  image: not used"]


def test_a_time_of_slurm_that_is_shorter_than_the_timeout_is_warned_of(jobsubmit: Command, tmp_path: Path) -> None:
    write_job(tmp_path, {"timeout": "3h", "backend": {"kind": "slurm", "time": "2h"}})
    assert "is 120 min, and `timeout` 180 min" in jobsubmit("validate", "job.yaml").stderr
