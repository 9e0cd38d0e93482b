"""What is in a bundle, what is left out and why, and what is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from jobsubmit.bundle.ignore import how_to_bring_back
from jobsubmit.bundle.left_out import left_out_notes
from jobsubmit.bundle.scanner import is_code, scan
from jobsubmit.errors import BundleError


def tree(root: Path, *paths: str) -> Path:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    return root


def paths(root: Path) -> list[str]:
    return [file.path for file in scan(root).files]


def test_defaults_leave_out_what_nobody_wants(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "a.py",
        ".git/config",
        "__pycache__/a.pyc",
        "sub/__pycache__/b.pyc",
        "old.pyc",
        ".venv/bin/python",
        "myenv/pyvenv.cfg",
        "myenv/bin/python",
        "node_modules/x.js",
    )
    assert paths(tmp_path) == ["a.py"]


def test_gitignore_rules_of_every_folder_count_and_the_deeper_wins(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "a.log", "sub/b.log", "sub/keep.log", "data/x", "sub/data/y")
    (tmp_path / ".gitignore").write_text("*.log\n/data/\n")
    (tmp_path / "sub/.gitignore").write_text("!keep.log\n")
    assert paths(tmp_path) == [".gitignore", "a.py", "sub/.gitignore", "sub/data/y", "sub/keep.log"]


def test_jobignore_adds_to_gitignore_and_counts_after_it(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "a.log", "b.log", "secret.txt", "sub/c.log", "sub/d.log")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / ".jobignore").write_text("secret.txt\n.*ignore\n!/a.log\n!c.log\n")
    (tmp_path / "sub/.gitignore").write_text("c.log\n!d.log\n")
    assert paths(tmp_path) == ["a.log", "a.py", "sub/d.log"]


@pytest.mark.parametrize("rules", ["data/\n", "/data\n", "data/*\n", "*.txt\n*.bin\n", "data/**\n"])
def test_the_hint_for_a_file_that_is_left_out_brings_back_that_file_and_nothing_else(
    rules: str, tmp_path: Path
) -> None:
    tree(tmp_path, "a.py", "data/x.txt", "data/private.txt", "data/train.bin", "data/deep/y.txt")
    (tmp_path / ".gitignore").write_text(rules)
    left_out = scan(tmp_path).left_out_by("data/x.txt")
    assert left_out
    hint = how_to_bring_back("data/x.txt", left_out)
    assert hint == "if it belongs to the code, add the line !data/x.txt to .jobignore"
    (tmp_path / ".jobignore").write_text("!data/x.txt\n")
    assert paths(tmp_path) == [".gitignore", ".jobignore", "a.py", "data/x.txt"]


@pytest.mark.parametrize("name", ["a b.txt ", "[x]*?.txt", "!x.txt", "#x.txt", "back\\slash.txt", "日本.txt"])
@pytest.mark.parametrize("folder", ["", "sub/", "sub/deeper/"])
def test_the_hint_holds_for_every_name_and_beside_a_deeper_rule(folder: str, name: str, tmp_path: Path) -> None:
    tree(tmp_path, "a.py", f"sub/{name}", f"sub/deeper/{name}", "sub/other.txt", name)
    path = folder + name
    (tmp_path / ".gitignore").write_text("*.txt*\n")
    (tmp_path / "sub/.gitignore").write_text("deeper\n*.txt*\n")
    left_out = scan(tmp_path).left_out_by(path)
    assert left_out
    line, _, file = how_to_bring_back(path, left_out).partition("add the line ")[2].rpartition(" to ")
    (tmp_path / file).write_text(f"{line}\n")
    assert [p for p in paths(tmp_path) if "ignore" not in p] == sorted(["a.py", path])


def git(root: Path, *words: str) -> str:
    isolated = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True, env=isolated).stdout


def test_what_git_tracks_is_left_out_by_jobignore_only(tmp_path: Path) -> None:
    tracked = ["a.py", "a.log", "build/lib/x.py", "venv/pyvenv.cfg", "venv/kept.py", "node_modules/x.js", "old.pyc"]
    tree(tmp_path, *tracked, "not.log", "build/lib/y.py", "build/z.py", "venv/bin/python", "secret/a.txt", "gone.log")
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    git(tmp_path, "add", "--force", *tracked, "secret", ".gitignore")
    (tmp_path / ".jobignore").write_text("secret/\nnode_modules/\n")
    assert paths(tmp_path) == sorted([".gitignore", ".jobignore", *tracked[:5], "old.pyc"])
    left_out = {left.path: left.rule for left in scan(tmp_path).left_out}
    assert left_out["build/lib/y.py"] == left_out["build/z.py"] == ".gitignore:2"
    assert left_out["secret/"] == ".jobignore:1"
    assert left_out["venv/bin/"] == ""
    assert is_code(tmp_path, "gone.log")
    assert not is_code(tmp_path, "secret/gone.txt")


def test_a_folder_in_a_repository_that_does_not_track_it_follows_the_rules(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    root = tree(tmp_path / "code", "a.py", "a.log")
    (root / ".gitignore").write_text("*.log\n")
    assert paths(root) == [".gitignore", "a.py"]


def test_a_negated_rule_brings_a_default_back(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "venv/data.txt")
    (tmp_path / ".jobignore").write_text("!venv/\n")
    assert "venv/data.txt" in paths(tmp_path)


def test_what_is_left_out_is_named_with_its_rule(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "a.log", ".git/config")
    (tmp_path / ".gitignore").write_text("*.log\n")
    os.mkfifo(tmp_path / "pipe")
    left_out = {left.path: left.reason for left in scan(tmp_path).left_out}
    assert left_out == {
        ".git/": "ignored by the default rules",
        "a.log": "ignored by .gitignore line 1: *.log",
        "pipe": "not a regular file",
    }


def test_the_digest_knows_paths_modes_and_contents_and_nothing_else(tmp_path: Path) -> None:
    first = scan(tree(tmp_path / "one", "a.py", "b/c.py"))
    second = scan(tree(tmp_path / "two", "b/c.py", "a.py"))
    assert first.digest == second.digest
    os.utime(tmp_path / "two/a.py", (1, 1))
    assert scan(tmp_path / "two").digest == first.digest
    (tmp_path / "two/a.py").chmod(0o755)
    with_mode = scan(tmp_path / "two").digest
    (tmp_path / "two/a.py").chmod(0o644)
    (tmp_path / "two/a.py").write_text("other")
    with_content = scan(tmp_path / "two").digest
    (tmp_path / "one/a.py").rename(tmp_path / "one/z.py")
    assert len({first.digest, with_mode, with_content, scan(tmp_path / "one").digest}) == 4


def test_links_inside_are_followed(tmp_path: Path) -> None:
    tree(tmp_path, "real/a.py")
    (tmp_path / "link.py").symlink_to("real/a.py")
    (tmp_path / "folder").symlink_to("real")
    assert paths(tmp_path) == ["folder/a.py", "link.py", "real/a.py"]


@pytest.mark.parametrize(
    ("target", "message"),
    [("../outside.py", "points outside"), (".", "points back to a folder above")],
)
def test_links_that_cannot_be_uploaded_are_refused(target: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("x")
    root = tree(tmp_path / "code", "a.py")
    (root / "link").symlink_to(target)
    with pytest.raises(BundleError, match=message) as caught:
        scan(root)
    assert "link" in caught.value.message


def test_an_ignored_link_may_lead_anywhere(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py")
    (root / "data").symlink_to("/usr")
    (root / ".jobignore").write_text("data\n")
    assert paths(root) == [".jobignore", "a.py"]


def test_missing_empty_and_wrong_directories(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, message in (
        ("nowhere", "does not exist"),
        ("empty", "no file to upload"),
        ("file", "is not a directory"),
    ):
        with pytest.raises(BundleError, match=message):
            scan(tmp_path / name)


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py")).touch()
    with pytest.raises(BundleError, match="not UTF-8"):
        scan(tmp_path)


@pytest.mark.parametrize("target", ["loop", "nowhere.py", "/no/such/folder"])
def test_a_link_that_leads_to_nothing_is_left_out(target: str, tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py", "sub/b.py")
    (root / "sub/loop").symlink_to(target)
    bundle = scan(root)
    assert [file.path for file in bundle.files] == ["a.py", "sub/b.py"]
    assert [(left.path, left.reason) for left in bundle.left_out] == [("sub/loop", "a broken link")]


def test_our_own_store_inside_the_code_is_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.py", "store/x", "deep/state/y")
    bundle = scan(root, own=(root / "store", root / "deep/state"))
    assert [file.path for file in bundle.files] == ["a.py"]
    assert [left.path for left in bundle.left_out] == ["deep/state/", "store/"]


def test_a_file_of_ours_is_not_one_that_a_rule_leaves_out(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.py", "job.schema.json", "config.json")
    (root / ".gitignore").write_text("*.json\n")
    bundle = scan(root, own=(root / "job.schema.json",))
    assert {left.path: left.rule for left in bundle.left_out} == {"config.json": ".gitignore:1", "job.schema.json": ""}
    (note,) = left_out_notes(bundle)
    assert note.startswith("not uploaded: 1 file, 11 B: config.json")


@pytest.mark.parametrize("folder", ["/proc", "/proc/self", "/sys/kernel", "/dev"])
def test_folders_of_the_kernel_are_no_code(folder: str) -> None:
    with pytest.raises(BundleError, match="contain no files to upload"):
        scan(Path(folder))


def test_the_output_of_this_command_is_not_part_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    kept = os.dup(1)
    with (tmp_path / "out.txt").open("wb") as out:
        os.dup2(out.fileno(), 1)
        try:
            bundle = scan(tmp_path)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    assert [file.path for file in bundle.files] == ["train.py"]
    assert ("out.txt", "the output of this command", "") in bundle.left_out
    assert {file.path for file in scan(tmp_path).files} == {"out.txt", "train.py"}
