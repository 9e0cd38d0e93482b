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
        ("job.yaml:6", "hyperparameters.lr: --lr=fast: invalid float value: 'fast' (declared at train.py:9)"),
        ("job.yaml:7", "hyperparameters.epochs: train.py:11 does not accept --epochs"),
        ("train.py:10", "--data is required but not given"),
        ("train.py:7", "MASTER_PORT=12355 replaces the port that the launcher listens on"),
    ):
        assert [line for line in done.stderr.splitlines() if place in line and text in line], (place, done.stderr)
    assert "hint: train.py:12  the process group is never destroyed" in done.stderr
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
    text = "not all accepted arguments are known: the name of an option is computed here"
    assert f"cannot tell: train.py:4  {text}" in done.stderr
    assert "is valid" in done.stdout


def test_a_file_that_is_read_and_left_out(job: Path, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text(
        "exec(open('conf/small.py').read())\nopen('out.txt', 'w')\nopen('no.txt')\n"
    )
    for name in ("conf/small.py", "out.txt"):
        (tmp_path / "code" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "code" / name).touch()
    (tmp_path / "code" / ".jobignore").write_text("conf/\n*.txt\n")
    done = jobsubmit("validate", "job.yaml")
    assert (
        "train.py:1  reads conf/small.py, which exists here but is not uploaded: ignored by .jobignore" in done.stderr
    )
    assert "out.txt, which" not in done.stderr
    assert "no.txt" not in done.stderr


def test_what_to_do_about_an_unknown_argument(job: Path, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.add_argument('--wd')\n"
        "p.parse_args()\n"
    )
    for name, remedy in (
        ("data", "data is a positional argument"),
        ("x", "(it has --wd)"),
        ("wdd", "use --wd, or declare --wdd"),
    ):
        job.write_text(job.read_text().partition("hyperparameters")[0] + f"hyperparameters: {{{name}: 1}}\nargs: [d]\n")
        assert remedy in jobsubmit("validate", "job.yaml", code=3).stderr


def test_a_device_that_no_node_has_is_no_matter(job: Path, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text(
        "import argparse\nimport torch\nimport torch.distributed as dist\np = argparse.ArgumentParser()\n"
        "p.add_argument('--local_rank', type=int, default=0)\nargs, _ = p.parse_known_args()\n"
        "dist.init_process_group('gloo')\nif torch.cuda.is_available():\n    torch.cuda.set_device(args.local_rank)\n"
        "dist.destroy_process_group()\n"
    )
    jobsubmit("validate", "job.yaml", env={"CUDA_VISIBLE_DEVICES": ""})


def test_many_processes_for_one_machine(job: Path, jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    job.write_text(job.read_text().partition("hyperparameters")[0])
    done = jobsubmit("validate", "job.yaml", "--nodes", "9000")
    assert "warning: --nodes  resources.nodes: 9,000 processes for the" in done.stderr


def test_the_job_file_is_no_part_of_the_code(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    done = jobsubmit("init", "--from", "torchrun train.py --lr 0.1")
    assert "next: fix" not in done.stderr
    first = jobsubmit.json("bundle", "--list")
    assert [file["path"] for file in first["largest"]] == ["train.py"]
    assert {left["path"] for left in first["left_out"]} >= {"job.yaml", "job.schema.json"}
    assert jobsubmit.json("bundle", "--set", "hyperparameters.lr=0.2")["digest"] == first["digest"]


def test_init_says_what_has_to_be_mended(jobsubmit: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    assert "next: fix 1 error: " in jobsubmit("init", "--from", "torchrun train.py --lr 0.1").stderr
