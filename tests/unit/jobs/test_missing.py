"""A job that did not find a file says where that file is, where this machine knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobsubmit.agent.job_directory import JobDirectory
from jobsubmit.backends.models import Failure
from jobsubmit.backends.shared.failure_hints import diagnose
from jobsubmit.bundle.left_out import left_out_notes
from jobsubmit.bundle.scanner import scan
from jobsubmit.jobs.missing import explain_what_is_missing, left_out_text
from jobsubmit.jobs.records import JobRecord

RECORD = JobRecord("a-1", "a", "torchrun", "slurm", 1, 0.0, "code", None, "", code_name="code")


@pytest.fixture
def files(tmp_path: Path) -> JobDirectory:
    root = tmp_path / "mine"
    (root / "data").mkdir(parents=True)
    (root / "a.py").touch()
    (root / "data/train.bin").write_bytes(bytes(3_000_000))
    (root / "data/val.bin").write_bytes(bytes(1_000))
    (root / ".gitignore").write_text("\n*.bin\n")
    (root / "link").symlink_to("nowhere")
    files = JobDirectory(tmp_path)
    Path(files.left_out).write_text(left_out_text(scan(root)))
    return files


def failure(line: str) -> Failure:
    return Failure(0, 1, 1, None, "", "rank 1", ("Traceback (most recent call last):", line))


@pytest.mark.parametrize("path", ["data/train.bin", "./data/train.bin", "/var/jobs/a-1/nodes/0/code/data/train.bin"])
def test_a_file_that_was_left_out_is_named_with_its_rule(path: str, files: JobDirectory) -> None:
    told = explain_what_is_missing(
        failure(f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"), RECORD, files
    )
    assert told.meaning == "data/train.bin was not uploaded: ignored by .gitignore line 2: *.bin"
    assert "add the line !data/train.bin to .jobignore; or name its folder in `inputs`" in told.hint


def test_a_folder_that_was_left_out_is_named_with_its_rule(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    (root / "data").mkdir(parents=True)
    (root / "a.py").touch()
    (root / "data/x.txt").touch()
    (root / ".gitignore").write_text("data/\n")
    files = JobDirectory(tmp_path)
    Path(files.left_out).write_text(left_out_text(scan(root)))
    told = explain_what_is_missing(
        failure("FileNotFoundError: [Errno 2] No such file or directory: 'data'"), RECORD, files
    )
    assert told.meaning == "data was not uploaded: ignored by .gitignore line 1: data/"
    assert "add the line !/data to .jobignore" in told.hint


def test_a_file_of_this_machine_leads_to_inputs(files: JobDirectory) -> None:
    line = f"FileNotFoundError: [Errno 2] No such file or directory: '{files.left_out}'"
    told = explain_what_is_missing(failure(line), RECORD, files)
    assert told.meaning == f"{files.left_out} exists on this machine, but not on the nodes"
    assert "inputs" in told.hint
    assert explain_what_is_missing(failure(line), replace(RECORD, backend="local"), files).meaning == ""


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'lib.checkpoint'",
        "ImportError: cannot import name 'checkpoint' from 'lib' (/jobs/a-1/nodes/0/code/src/lib/__init__.py)",
    ],
)
def test_a_module_of_a_package_that_was_left_out_is_named_with_its_rule(line: str, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    (root / "src/lib").mkdir(parents=True)
    for name in ("src/lib/__init__.py", "src/lib/checkpoint.py"):
        (root / name).touch()
    (root / ".gitignore").write_text("checkpoint*\n")
    files = JobDirectory(tmp_path)
    Path(files.left_out).write_text(left_out_text(scan(root)))
    told = explain_what_is_missing(failure(line), RECORD, files)
    assert told.meaning == "src/lib/checkpoint.py was not uploaded: ignored by .gitignore line 1: checkpoint*"
    assert "add the line !src/lib/checkpoint.py to .jobignore" in told.hint


def test_any_other_file_has_a_meaning_too(files: JobDirectory) -> None:
    line = "FileNotFoundError: [Errno 2] No such file or directory: '/data/none.txt'"
    assert explain_what_is_missing(failure(line), RECORD, files).meaning == ""
    found = diagnose([line])
    assert found
    assert found.meaning == "the file /data/none.txt, or its folder, is not on the node"


def test_what_is_left_out_is_one_line_with_the_largest_first(tmp_path: Path, files: JobDirectory) -> None:
    assert list(left_out_notes(scan(tmp_path / "mine"))) == [
        "not uploaded: 2 files, 3 MB: data/train.bin (3 MB, .gitignore line 2), data/val.bin (1 kB, .gitignore line 2)",
        "not uploaded: link: a broken link",
    ]
