"""A submission says which commit its code is, and what of it is in none."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import Command

from jobsubmit.bundle import git as revision

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
    kept = job.parent / "state" / "jobs" / created["id"] / "uncommitted.diff"
    expected = {
        "commit": git(job, "rev-parse", "HEAD"),
        "branch": "main",
        "uncommitted": ["helpers.py", "new.py", "train.py"],
        "diff_sha256": hashlib.sha256(kept.read_bytes()).hexdigest(),
    }
    assert created["code"]["git"] == expected
    (manifest,) = stored(job, ".manifest.json")
    assert json.loads(manifest.read_text())["git"] == expected
    (diff,) = stored(job, ".diff")
    assert diff.name == f"code.tar.gz.uncommitted-{expected['diff_sha256'][:12]}.diff"
    assert "-print('one')\n+print('two')\n" in diff.read_text()
    assert "no part of the code" not in diff.read_text()
    jobsubmit("wait", created["id"])
    jobsubmit("rerun", created["id"], "--job-id", "again")
    assert jobsubmit.json("status", "again")["code"]["git"] == expected
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
    assert "code unchanged: 2 files already in the store" in done.stderr
    assert stored(job, ".manifest.json") == [manifest]
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == before
    kept = {"commit": new, "branch": "main", "uncommitted": [], "diff_sha256": ""}
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


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("none", "not a git repository"),
        ("no commit", "its repository has no commit yet"),
        ("all of it ignored", "git tracks no file in {job}/code"),
        ("no git", "git is not on PATH"),
    ],
)
def test_code_outside_of_git_is_submitted_as_before(
    job: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch, how: str, why: str
) -> None:
    why = why.format(job=job)
    (job / ".git").rename(job.parent / "gone")
    if how in ("no commit", "all of it ignored"):
        git(job, "init", "--quiet")
    if how == "all of it ignored":
        (job / ".gitignore").write_text("code/\n")
        commit(job)
    if how == "no git":
        monkeypatch.setenv("PATH", str(job))
    assert jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"] is None
    done = jobsubmit("create", "project/job.yaml", "--require-clean", code=3)
    assert f"code_dir: its commit cannot be determined: {why}" in done.stderr


def test_secrets_and_what_is_left_out_are_in_no_diff(job: Path, jobsubmit: Command) -> None:
    code = job / "code"
    (code / "helpers.py").write_text(f'TOKEN = "{TOKEN}"\n')
    (code / ".env").write_text("DB_PASSWORD=hunter2hunter2\n")
    (code / "netrc").write_text("machine h.io\n  login me\n  password s3cr3tpw99\n")
    (code / "private.txt").write_text("private notes\n")
    (code / "notes.txt").write_text("changed, and left out\n")
    (code / ".jobignore").write_text("*.txt\n.jobignore\n")
    commit(job)
    (code / "helpers.py").write_text("TOKEN = os.environ['TOKEN']\n")
    (code / "train.py").write_text("print('café')\n", encoding="latin-1")
    (code / "notes.txt").write_text("and changed again\n")
    for name in (".env", "netrc", "private.txt"):
        (code / name).unlink()
    created = jobsubmit.json("create", "project/job.yaml")
    jobsubmit("wait", created["id"], code=None)
    assert created["code"]["git"]["uncommitted"] == [".env", "helpers.py", "netrc", "train.py"]
    (diff,) = stored(job, ".diff")
    told = diff.read_bytes()
    assert b"+print('caf\xe9')" in told
    for name in (".env", "helpers.py", "netrc"):
        assert f"# jobsubmit: '{name}': left out, it contains a secret\n".encode() in told
    assert (job.parent / "state" / "jobs" / created["id"] / "uncommitted.diff").read_bytes() == told
    kept = [file for file in job.parent.rglob("*") if file.is_file() and job not in file.parents]
    assert len(kept) > 5
    for secret in (TOKEN, "hunter2hunter2", "s3cr3tpw99", "private notes", "changed again"):
        assert not [file for file in kept if secret.encode() in file.read_bytes()]


# What is done to clean code, and the files that are then no longer what the commit has.
UNCLEAN = {
    "changed": ("echo x >> train.py", ["train.py"]),
    "staged": ("echo x > new.py; git add new.py", ["new.py"]),
    "not watched": ("git update-index --assume-unchanged train.py; echo x >> train.py", ["train.py"]),
    "not wanted": ("git update-index --skip-worktree train.py; echo x >> train.py", ["train.py"]),
    "a new link": ("ln -s lib link; touch link.py; git add link.py; git commit -qm x", ["link/m.py"]),
    "a link to what is ignored": (
        "echo data/ > .gitignore; mkdir data; echo x > data/x.py; ln -s data link; git add -A; git commit -qm x",
        ["link/x.py"],
    ),
    "a link that leads elsewhere": (
        "cp -r lib lib2; ln -s lib cur; touch cur.py; git add -A; git commit -qm x; ln -sfn lib2 cur",
        ["cur/m.py"],
    ),
    "a submodule": (
        "git -c protocol.file.allow=always submodule --quiet add $PWD/../../inner sub; touch sub.py sub-x; git add -A;"
        "git commit -qm x; git config diff.ignoreSubmodules all; echo x >> sub/train.py",
        ["sub/train.py"],
    ),
    "ignored in a submodule": (
        "git -c protocol.file.allow=always submodule --quiet add $PWD/../../inner sub; git add -A; git commit -qm x;"
        "echo local.py >> $(git -C sub rev-parse --git-dir)/info/exclude; touch sub/local.py",
        ["sub/local.py"],
    ),
}
# What does not change what is uploaded.
CLEAN = {
    "nothing": "true",
    "touched": "touch train.py",
    "staged and taken back": "cp train.py old; echo x >> train.py; git add train.py; mv old train.py",
    "added and removed": "echo x > n.py; git add n.py; rm n.py",
    "a folder that is left out is gone": (
        "mkdir docs; touch docs/a.md; echo docs/ > .jobignore; git add -A; git commit -qm x; rm -r docs"
    ),
    "without untracked files": "git config status.showUntrackedFiles no",
    "a link of the commit": "ln -s lib link; git add -A; git commit -qm x",
    "settings": "git config diff.orderFile /nowhere; git config diff.noprefix true; git config diff.external false",
    "sparse": "git sparse-checkout set lib 2>/dev/null",
}


@pytest.fixture
def links(job: Path) -> Path:
    """Return the folder of the job; its code has a folder, and there is another repository."""
    inner = job.parent / "inner"
    inner.mkdir()
    (inner / "train.py").touch()
    git(inner, "init", "--quiet")
    commit(inner)
    (job / "code" / "lib").mkdir()
    (job / "code" / "lib" / "m.py").write_text("M = 1\n")
    for name, value in (("user.name", "a"), ("user.email", "a@example.org")):
        git(job, "config", name, value)
    commit(job)
    return job


def do(folder: Path, script: str) -> None:
    subprocess.run(["bash", "-ec", script], cwd=folder / "code", check=True, capture_output=True)


@pytest.mark.parametrize("how", UNCLEAN)
def test_unclean_code_is_refused(links: Path, jobsubmit: Command, how: str) -> None:
    script, expected = UNCLEAN[how]
    do(links, script)
    done = jobsubmit("create", "project/job.yaml", "--require-clean", "--dry-run", code=3)
    assert f": {', '.join(expected)}\n" in done.stderr


@pytest.mark.parametrize("how", CLEAN)
def test_clean_code_is_not_refused(links: Path, jobsubmit: Command, how: str) -> None:
    do(links, CLEAN[how])
    jobsubmit("create", "project/job.yaml", "--require-clean", "--dry-run")


def test_git_around_us_does_not_count(links: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a hook of another repository."""
    (links / "code" / "train.py").write_text("changed\n")
    monkeypatch.setenv("GIT_DIR", str(links.parent / "inner" / ".git"))
    monkeypatch.setenv("GIT_GLOB_PATHSPECS", "1")
    told = jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"]
    monkeypatch.undo()
    assert told["commit"] == git(links, "rev-parse", "HEAD")
    assert told["uncommitted"] == ["train.py"]


def test_code_in_a_bucket_is_of_no_known_commit(job: Path, jobsubmit: Command) -> None:
    remote = ("--set", "code_dir=s3://bucket/code", "--set", "store.uri=s3://bucket/jobs")
    done = jobsubmit("create", "project/job.yaml", *remote, "--require-clean", "--dry-run", code=3)
    assert "is in a bucket" in done.stderr


def test_names_that_are_not_utf_8(job: Path, jobsubmit: Command) -> None:
    do(
        job,
        "printf x > $'b\\377\\033[31m.txt'; git add -A; git -c user.name=a -c user.email=a@b commit -qm x; rm b*.txt",
    )
    git(job, "checkout", "--quiet", "-b", "br\udcff")
    created = jobsubmit.json("create", "project/job.yaml")
    assert created["code"]["git"]["branch"] == "br\\xff"
    assert created["code"]["git"]["uncommitted"] == ["b\\xff\033[31m.txt"]
    refused = jobsubmit("create", "project/job.yaml", "--require-clean", code=3)
    assert "\033" not in refused.stderr


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


@pytest.mark.parametrize("where", ["code", "code/sub"])
@pytest.mark.parametrize("name", ["mine", "a=b", "a.b"])
def test_a_filter_of_the_repository_is_never_started(
    name: str, where: str, job: Path, links: Path, jobsubmit: Command
) -> None:
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(job.parent / "inner"), "sub")
    git(job / "code", *add)
    commit(job)
    repository = job / where
    for file in repository.glob("*.py"):
        file.write_text("changed = 1\n")
    for key in ("clean", "smudge", "process"):
        git(repository, "config", f"filter.{name}.{key}", f"sh -c 'echo {key} >> {job.parent}/ran; cat'")
    git(repository, "config", f"filter.{name}.required", "true")
    (repository / ".gitattributes").write_text(f"*.py filter={name}\n")
    told = jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"]
    for command in ("validate", "bundle"):
        jobsubmit(command, "project/job.yaml" if command == "validate" else "project/code", code=None)
    assert not (job.parent / "ran").exists()
    assert ("sub/train.py" if where == "code/sub" else "train.py") in told["uncommitted"]


def told_of(jobsubmit: Command) -> Any:
    return jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"]


@pytest.mark.parametrize("how", ["work tree", "file", "link", "common folder"])
def test_a_repository_cannot_bring_in_files_or_commits_from_elsewhere(how: str, job: Path, jobsubmit: Command) -> None:
    private = job.parent / "private"
    (private / "code").mkdir(parents=True)
    (private / "code" / "train.py").write_text("THE OTHER FILE\n")
    git(private, "init", "--quiet", "--initial-branch=main")
    commit(private)
    own = job / ".git"
    if how == "work tree":
        git(job, "config", "core.worktree", str(private))
    elif how == "common folder":
        (own / "commondir").write_text(str(private / ".git"))
    else:
        shutil.rmtree(own)
        if how == "link":
            own.symlink_to(private / ".git")
        else:
            own.write_text(f"gitdir: {private / '.git'}\n")
    assert told_of(jobsubmit) is None
    jobsubmit("wait", jobsubmit.json("create", "project/job.yaml")["id"])
    found = [file for file in job.parent.rglob("*") if file.is_file() and private not in file.parents]
    assert not [file for file in found if b"THE OTHER FILE" in file.read_bytes()]


def test_a_worktree_of_a_repository_has_its_revision(job: Path, jobsubmit: Command) -> None:
    git(job, "worktree", "add", "--quiet", str(job.parent / "tree"), "-b", "side")
    job.rename(job.parent / "main")
    (job.parent / "tree").rename(job)
    git(job.parent / "main", "worktree", "repair", str(job))
    assert told_of(jobsubmit)["branch"] == "side"


def test_a_pipe_in_a_repository_keeps_nobody(job: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision, "_SHORT_SECONDS", 1)
    (job / ".git" / "config").unlink()
    os.mkfifo(job / ".git" / "config")
    with pytest.raises(revision.UnknownRevisionError, match="timed out"):
        revision.read_revision(job / "code", {}, lambda path: True)


def test_no_hook_of_the_repository_runs_and_its_index_is_not_written(job: Path, jobsubmit: Command) -> None:
    """Where the stamp of a file is old git would write the index anew, and say so to a hook."""
    hooks = job.parent / "hooks"
    for folder in (job / ".git" / "hooks", hooks):
        folder.mkdir(exist_ok=True)
        (folder / "post-index-change").write_text(f"#!/bin/sh\ntouch {job.parent}/ran\n")
        (folder / "post-index-change").chmod(0o755)
    before = (job / ".git" / "index").read_bytes()
    for _ in range(2):
        for number in range(3):
            (job / "code" / f"touched{number}.py").touch()
        for file in (job / "code").glob("*.py"):
            os.utime(file, (1_700_000_000, 1_700_000_000))
        assert jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"]["commit"]
        git(job, "config", "core.hooksPath", str(hooks))
    assert not (job.parent / "ran").exists()
    assert (job / ".git" / "index").read_bytes() == before


@pytest.mark.parametrize(("version", "is_told"), [("2.25.1", False), ("2.30.2", False), ("2.31.0", True)])
def test_an_old_git_is_not_asked_about_a_repository_with_filters(
    version: str, is_told: bool, job: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("git")
    (job.parent / "bin").mkdir()
    wrapper = job.parent / "bin" / "git"
    old = "unset GIT_CONFIG_COUNT" if not is_told else "true"
    told = f'case " $* " in *" version "*) echo git version {version}; exit;; esac'
    wrapper.write_text(f'#!/bin/sh\n{told}\n{old}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    git(job, "config", "filter.mine.clean", f"touch {job.parent}/ran; cat")
    (job / ".gitattributes").write_text("*.py filter=mine\n")
    (job / "code" / "train.py").write_text("changed = 1\n")
    found = jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"]
    assert (found is not None) == is_told
    assert not (job.parent / "ran").exists()


def test_a_filter_of_the_user_is(job: Path, jobsubmit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As LFS is: what is in the commit is what the filter makes of the file."""
    (job.parent / "gitconfig").write_text('[filter "upper"]\n\tclean = tr a-z A-Z\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(job.parent / "gitconfig"))
    (job / ".gitattributes").write_text("*.py filter=upper\n")
    git(job, "add", "--renormalize", ".")
    commit(job)
    (job / "code" / "train.py").touch()
    assert jobsubmit.json("create", "project/job.yaml", "--dry-run")["git"]["uncommitted"] == []


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
