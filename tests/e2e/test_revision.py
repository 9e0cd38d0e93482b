"""A submission says which commit its code is, and what of it is in none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command import Command

TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the folder of a job whose code is committed, all of it, as a part of a larger repository."""
    code = tmp_path / "project" / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text("print('one')\n")
    (code / "helpers.py").write_text("HELP = 1\n")
    (tmp_path / "project" / "notes.txt").write_text("no part of the code\n")
    (tmp_path / "project" / "job.yaml").write_text(
        'name: kept\nmode: torchrun\nimage: pytorch:2.3\ncode_dir: code\nstore: {uri: ../store}\ncommand: ["true"]\n'
    )
    git(tmp_path / "project", "init", "--quiet", "--initial-branch=main")
    commit(tmp_path / "project")
    return tmp_path / "project"


def git(folder: Path, *args: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "x")
    return git(folder, "rev-parse", "HEAD")


def stored(folder: Path, ending: str) -> list[Path]:
    return sorted((folder.parent / "store").rglob(f"*{ending}"))


def test_commit_branch_and_what_is_uncommitted_are_kept_with_the_code(job: Path, jobsubmit: Command) -> None:
    (job / "code" / "train.py").write_text("print('two')\n")
    (job / "code" / "new.py").write_text("NEW = 1\n")
    (job / "notes.txt").write_text("changed, but no part of the code\n")
    (job / "code" / "helpers.py").unlink()
    created = jobsubmit.json("create", "project/job.yaml")
    expected = {
        "commit": git(job, "rev-parse", "HEAD"),
        "branch": "main",
        "uncommitted": ["helpers.py", "new.py", "train.py"],
    }
    assert created["code"]["git"] == expected
    (manifest,) = stored(job, ".manifest.json")
    assert json.loads(manifest.read_text())["git"] == expected
    (diff,) = stored(job, ".uncommitted.diff")
    assert "-print('one')\n+print('two')\n" in diff.read_text()
    assert "no part of the code" not in diff.read_text()
    git(job, "checkout", "--quiet", ".")
    git(job, "apply", str(diff))
    assert (job / "code" / "train.py").read_text() == "print('two')\n"


def test_the_same_code_in_another_commit_is_not_sent_again(job: Path, jobsubmit: Command) -> None:
    (job / "code" / "train.py").write_text("print('two')\n")
    jobsubmit("create", "project/job.yaml")
    (manifest,) = stored(job, ".manifest.json")
    before = (manifest.read_bytes(), manifest.stat().st_mtime_ns)
    new = commit(job)
    done = jobsubmit("create", "project/job.yaml", "--require-clean", "--job-id", "second")
    assert "code unchanged: 2 files are in the store already" in done.stderr
    assert stored(job, ".manifest.json") == [manifest]
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == before
    kept = {"commit": new, "branch": "main", "uncommitted": []}
    assert jobsubmit.json("status", "second")["code"]["git"] == kept
    jobsubmit("wait", "second")
    jobsubmit("rerun", "second", "--job-id", "third")
    assert jobsubmit.json("status", "third")["code"]["git"] == kept


@pytest.mark.parametrize(
    ("path", "text", "ignored"),
    [("train.py", "changed\n", False), ("new.py", "", False), ("made.out", "", True)],
    ids=["changed", "untracked", "ignored by git only"],
)
def test_code_that_is_in_no_commit_can_be_refused(
    job: Path, jobsubmit: Command, path: str, text: str, ignored: bool
) -> None:
    (job / ".gitignore").write_text("*.out\n")
    commit(job)
    jobsubmit("create", "project/job.yaml", "--require-clean", "--dry-run")
    (job / "code" / path).write_text(text)
    done = jobsubmit("create", "project/job.yaml", "--require-clean", code=3)
    assert f"not in commit {git(job, 'rev-parse', 'HEAD')[:12]}: {path}\n" in done.stderr
    assert not (job.parent / "store").exists()
    assert jobsubmit.json("list") == []
    if path != "train.py":
        (job / "code" / ".jobignore").write_text(f"{path}\n.jobignore\n")
        jobsubmit("create", "project/job.yaml", "--require-clean", "--dry-run")


@pytest.mark.parametrize("how", ["none", "no commit", "all of it ignored"])
def test_code_outside_of_git_is_submitted_as_before(job: Path, jobsubmit: Command, how: str) -> None:
    (job / ".git").rename(job.parent / "gone")
    if how != "none":
        git(job, "init", "--quiet")
    if how == "all of it ignored":
        (job / ".gitignore").write_text("code/\n")
        commit(job)
    assert jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"] is None
    done = jobsubmit("create", "project/job.yaml", "--require-clean", code=3)
    assert "is no commit of a git repository" in done.stderr


def test_a_secret_that_was_taken_out_of_the_code_stays_out(job: Path, jobsubmit: Command) -> None:
    (job / "code" / "helpers.py").write_text(f'TOKEN = "{TOKEN}"\n')
    commit(job)
    (job / "code" / "helpers.py").write_text("TOKEN = os.environ['TOKEN']\n")
    created = jobsubmit.json("create", "project/job.yaml")
    assert created["code"]["git"]["uncommitted"] == ["helpers.py"]
    kept = [file for file in job.parent.rglob("*") if file.is_file() and job not in file.parents]
    assert len(kept) > 5
    assert not [file for file in kept if TOKEN.encode() in file.read_bytes()]


def test_git_changes_nothing_and_runs_no_program_of_the_repository(job: Path, jobsubmit: Command) -> None:
    program = job.parent / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {job.parent}/ran\nexit 1\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "diff.mine.textconv", "diff.mine.command", "core.pager"):
        git(job, "config", name, str(program))
    (job / ".git" / "info" / "attributes").write_text("* diff=mine\n")
    (job / "code" / "train.py").touch()  # its stamp is another: git would like to write its index anew
    (job / "code" / "helpers.py").write_text("HELP = 2\n")
    before = {file: file.read_bytes() for file in (job / ".git").rglob("*") if file.is_file()}
    told = jobsubmit.json("create", "project/job.yaml", "--dry-run")
    assert told["git"]["uncommitted"] == ["helpers.py"]
    assert not (job.parent / "ran").exists()
    assert {file: file.read_bytes() for file in (job / ".git").rglob("*") if file.is_file()} == before


def test_a_detached_head_and_odd_names(job: Path, jobsubmit: Command) -> None:
    git(job, "checkout", "--quiet", "--detach")
    for name in ("two words.py", "neu ü.py", "-flag.py", ":(glob)x.py"):
        (job / "code" / name).write_text("pass\n")
    git(job, "mv", "code/helpers.py", "code/renamed.py")
    told = jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"]
    assert told["branch"] == ""
    assert told["uncommitted"] == sorted(
        ["-flag.py", ":(glob)x.py", "helpers.py", "neu ü.py", "renamed.py", "two words.py"]
    )
