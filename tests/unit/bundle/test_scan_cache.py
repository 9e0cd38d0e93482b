"""A file that did not change is not read again; one that might have is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from jobsubmit.bundle.model import Bundle
from jobsubmit.bundle.scan_cache import load_known, save_known
from jobsubmit.bundle.scanner import scan

OLD = time.time() - 3600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    for name in ("a.py", "sub/b.py", "sub/c d.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def look(root: Path, cache: Path, *, later: bool = True) -> Bundle:
    """Scan as an upload does; `later` stands for a scan long after the files were written."""
    known = load_known(cache, root)
    bundle = scan(root, known=known)
    save_known(cache, bundle._replace(scanned=bundle.scanned + 10**10) if later else bundle, len(known))
    return bundle


def test_nothing_is_read_twice(root: Path, cache: Path) -> None:
    assert look(root, cache).read == 3
    again = look(root, cache)
    assert again.read == 0
    assert again.digest == scan(root).digest


def test_what_is_younger_than_the_clock_can_tell_is_always_read(root: Path, cache: Path) -> None:
    look(root, cache, later=False)
    assert look(root, cache).read == 3


@pytest.mark.parametrize("act", ["same size, same time", "replaced", "touched", "new link"])
def test_what_may_have_changed_is_read(act: str, root: Path, cache: Path) -> None:
    look(root, cache)
    file = root / "a.py"
    before = file.stat()
    if act == "same size, same time":
        file.write_text("A.PY")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # ctime tells
    elif act == "replaced":
        (root / "new").write_text("n.py")
        os.utime(root / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (root / "new").replace(file)
    elif act == "touched":
        file.touch()
    else:
        file.unlink()
        file.symlink_to("sub/b.py")
    bundle = look(root, cache)
    assert bundle.read == 1
    assert bundle.digest == scan(root).digest


def test_files_that_come_and_go(root: Path, cache: Path) -> None:
    look(root, cache)
    (root / "sub/b.py").unlink()
    (root / "new.py").write_text("new")
    assert look(root, cache).read == 1
    assert sorted(load_known(cache, root)) == ["a.py", "new.py", "sub/c d.py"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "noise", "other format", "a folder"])
def test_a_damaged_cache_is_not_believed(damage: str, root: Path, cache: Path) -> None:
    look(root, cache)
    (file,) = cache.iterdir()
    data = file.read_bytes()
    if damage == "cut":
        file.write_bytes(data[:-10])
    elif damage == "flipped":
        digest = scan(root).files[0].sha256.encode()
        file.write_bytes(data.replace(digest, b"0" * 64))
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "noise":
        file.write_bytes(os.urandom(1000))
    elif damage == "other format":
        header, _, body = data.partition(b"\n")
        file.write_bytes(json.dumps({**json.loads(header), "format": "2"}).encode() + b"\n" + body)
    else:
        file.unlink()
        file.mkdir()
    bundle = look(root, cache)
    assert bundle.read == 3
    assert bundle.digest == scan(root).digest


def test_a_cache_of_another_directory_is_not_believed(root: Path, cache: Path, tmp_path: Path) -> None:
    look(root, cache)
    (file,) = cache.iterdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("other")
    look(other, cache)
    (foreign,) = set(cache.iterdir()) - {file}
    foreign.write_bytes(file.read_bytes())
    assert look(other, cache).read == 1


def test_a_directory_of_one_name_after_another(root: Path, cache: Path, tmp_path: Path) -> None:
    look(root, cache)
    root.rename(tmp_path / "before")
    root.mkdir()
    for name in ("a.py", "b.py"):
        (root / name).write_text(name)
    assert look(root, cache).digest == scan(root).digest


def test_a_cache_that_cannot_be_written_is_done_without(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert look(root, tmp_path / "file/cache").read == 3
    assert look(root, tmp_path / "file/cache").read == 3
