"""`validate` tells what cannot work, and `create` sends nothing then."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command

SCRIPT = """\
import argparse
import os

import helpers
import torch.distributed as dist

os.environ["MASTER_PORT"] = "12355"
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--data", required=True)
args = parser.parse_args()
dist.init_process_group("gloo")
print(args, helpers, os.environ["LOCAL_RANK"])
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "code" / "helpers.py").touch()
    (tmp_path / "code" / ".jobignore").write_text("help*\n")
    (tmp_path / "job.yaml").write_text(
        "name: checked\nmode: torchrun\ncode_dir: code\nboot_file: train.py\n"
        "hyperparameters:\n  lr: fast\n  epochs: 3\nstore: {uri: store}\n"
    )
    return tmp_path / "job.yaml"


def test_all_that_is_wrong_is_told_at_once_with_its_place(job: Path, jobsubmit: Command) -> None:
    done = jobsubmit("validate", "job.yaml", code=3)
    for place, text in (
        ("train.py:4", "helpers.py is ignored by .jobignore"),
        ("job.yaml:6", "hyperparameters.lr: --lr=fast: train.py:9 says: invalid float value: 'fast'"),
        ("job.yaml:7", "hyperparameters.epochs: train.py:11 does not know --epochs"),
        ("train.py:10", "--data is required, and is not given"),
        ("train.py:7", "MASTER_PORT=12355 replaces the port that the launcher listens on"),
    ):
        assert [line for line in done.stderr.splitlines() if place in line and text in line], (place, done.stderr)
    assert "hint: train.py:12  the process group is never ended" in done.stderr
    assert done.stdout == ""


def test_programs_get_it_as_json(job: Path, jobsubmit: Command) -> None:
    told = jobsubmit.json("validate", "job.yaml", code=3)
    assert told["valid"] is False
    found = {(finding["check"], finding["level"]) for finding in told["findings"]}
    assert {("argument-type", "error"), ("argument-unknown", "error"), ("destroy", "hint")} <= found


def test_nothing_is_sent_unless_the_checks_are_left_out(job: Path, jobsubmit: Command) -> None:
    jobsubmit("create", "job.yaml", code=3)
    jobsubmit("create", "job.yaml", "--dry-run", code=3)
    assert not (job.parent / "store").exists()
    assert "# ── script" in jobsubmit("create", "job.yaml", "--dry-run", "--no-check").stdout


def test_the_code_is_not_run(job: Path, jobsubmit: Command) -> None:
    (job.parent / "code" / "train.py").write_text("open('it-ran', 'w')\nimport sys\nsys.exit(9)\n")
    jobsubmit("validate", "job.yaml", "--set", "hyperparameters={}")
    assert not list(job.parent.rglob("it-ran"))


def test_what_cannot_be_told_is_said_and_stops_nothing(job: Path, jobsubmit: Command) -> None:
    (job.parent / "code" / "train.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "for name in open('names'):\n    parser.add_argument('--' + name)\nparser.parse_args()\n"
    )
    done = jobsubmit("validate", "job.yaml")
    assert (
        "cannot tell: train.py:4  which arguments it takes: the name of an option is put together here" in done.stderr
    )
    assert "is valid" in done.stdout
