"""What is in a bundle, what is left out and why, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobsubmit.bundle.scanner import scan
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


def test_jobignore_replaces_gitignore(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "a.log", "secret.txt")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / ".jobignore").write_text("secret.txt\n.gitignore\n")
    assert paths(tmp_path) == [".jobignore", "a.log", "a.py"]


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
        "a.log": "ignored by .gitignore",
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
    [("../outside.py", "leads out of"), ("nowhere.py", "leads to nothing"), (".", "leads back to a folder above")],
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


def test_a_link_in_circles_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py")
    (root / "loop").symlink_to("loop")
    with pytest.raises(BundleError, match="loop"):
        scan(root)


def test_our_own_store_inside_the_code_is_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.py", "store/x", "deep/state/y")
    bundle = scan(root, own=(root / "store", root / "deep/state"))
    assert [file.path for file in bundle.files] == ["a.py"]
    assert [left.path for left in bundle.left_out] == ["deep/state/", "store/"]


@pytest.mark.parametrize("folder", ["/proc", "/proc/self", "/sys/kernel", "/dev"])
def test_folders_of_the_kernel_are_no_code(folder: str) -> None:
    with pytest.raises(BundleError, match="holds no files"):
        scan(Path(folder))
