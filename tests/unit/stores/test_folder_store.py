"""A folder as a store, which other users may write to."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from other_user import NOBODY, needs_root

from jobsubmit.errors import StoreError
from jobsubmit.stores.folder import FolderStore

UNFINISHED = f".jobsubmit-unfinished-{os.getuid()}"


def put(store: FolderStore, key: str = "code/train.py", data: bytes = b"x") -> None:
    store.put(key, data, hashlib.sha256(data).hexdigest())


def old_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of the victim")
    os.utime(path, (time.time() - 90_000,) * 2)
    return path


def test_a_planted_link_leads_no_clean_up_elsewhere(tmp_path: Path) -> None:
    theirs = old_file(tmp_path / "home" / "thesis.tex")
    store = FolderStore(tmp_path / "store")
    store.root.mkdir()
    (store.root / UNFINISHED).symlink_to(theirs.parent)
    put(store)
    assert theirs.read_text() == "of the victim"
    assert list(theirs.parent.iterdir()) == [theirs]
    assert store.get("code/train.py") == b"x"
    assert sorted(path.name for path in store.root.iterdir()) == [UNFINISHED, "code"]


@pytest.mark.parametrize("what", ["file", "dangling", "fifo"])
def test_anything_else_of_that_name_is_in_nobodys_way(what: str, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.root.mkdir()
    planted = store.root / UNFINISHED
    if what == "file":
        planted.touch()
    elif what == "fifo":
        os.mkfifo(planted)
    else:
        planted.symlink_to(tmp_path / "nowhere")
    put(store)
    assert store.get("code/train.py") == b"x"
    assert not (tmp_path / "nowhere").exists()


@needs_root
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    planted = store.root / UNFINISHED
    theirs = old_file(planted / "old")
    os.chown(planted, NOBODY, NOBODY)
    put(store)
    assert theirs.exists()
    assert store.get("code/train.py") == b"x"


@needs_root
def test_a_link_of_another_user_is_not_written_through(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("mine")
    store = FolderStore(tmp_path / "store")
    store.root.mkdir()
    (store.root / "code").symlink_to(project)
    os.lchown(store.root / "code", NOBODY, NOBODY)
    with pytest.raises(StoreError, match="another user"):
        put(store)
    with pytest.raises(StoreError, match="another user"):
        store.delete("code/train.py")
    assert (project / "train.py").read_text() == "mine"


def test_unfinished_files_are_private_and_old_ones_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    left = old_file(store.root / UNFINISHED / "left")
    new = store.root / UNFINISHED / "new"
    new.write_text("another process writes it")
    left.parent.chmod(0o755)
    put(store)
    assert not left.exists()
    assert new.exists()
    assert left.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("around", "file", "folder"), [(0o700, 0o600, 0o700), (0o755, 0o644, 0o755)])
def test_a_store_gives_no_more_rights_than_the_folder_it_lies_in(
    around: int, file: int, folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsubmit.stores.folder._UMASK", 0o022)
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(around)
    put(FolderStore(above / "store"))
    assert (above / "store/code/train.py").stat().st_mode & 0o777 == file
    assert (above / "store/code").stat().st_mode & 0o777 == folder


def test_a_store_of_a_group_stays_the_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsubmit.stores.folder._UMASK", 0o002)
    tmp_path.chmod(0o2775)
    before = os.umask(0o002)
    try:
        put(FolderStore(tmp_path))
    finally:
        os.umask(before)
    assert (tmp_path / "code/train.py").stat().st_mode & 0o777 == 0o664
    assert (tmp_path / "code").stat().st_mode & 0o770 == 0o770


@needs_root
def test_objects_get_the_group_of_a_store_whose_folder_gives_it(tmp_path: Path) -> None:
    os.chown(tmp_path, -1, NOBODY)
    tmp_path.chmod(0o2775)
    put(FolderStore(tmp_path))
    assert (tmp_path / "code/train.py").stat().st_gid == NOBODY
