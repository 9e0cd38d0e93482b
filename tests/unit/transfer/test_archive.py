"""Archives: what shrinks is compressed, what does not is stored, and any gzip reads both."""

from __future__ import annotations

import gzip
import random
import tarfile
import threading
from pathlib import Path

import pytest

from jobsubmit.bundle.scanner import scan
from jobsubmit.errors import BundleError
from jobsubmit.transfer.archive import largest, packed
from jobsubmit.transfer.progress import Progress

TEXT = b"for step in range(1000): loss.backward()\n" * 60_000
NOISE = random.Random(3).randbytes(5_000_000)


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"noise.bin": NOISE}, 1.001),
        ({"text.py": TEXT}, 0.05),
        ({"a.bin": NOISE, "b.py": TEXT, "c.bin": NOISE[:70_000], "d.py": b"x", "empty": b""}, 0.75),
        ({"small.bin": NOISE[:1000]}, 5.0),
    ],
)
def test_any_gzip_reads_what_was_packed(files: dict[str, bytes], most: float, tmp_path: Path) -> None:
    root = tmp_path / "code"
    root.mkdir()
    for name, data in files.items():
        (root / name).write_bytes(data)
    archive = tmp_path / "code.tar.gz"
    data = b"".join(packed(scan(root), Progress()))
    archive.write_bytes(data)
    assert len(data) <= most * sum(map(len, files.values())) + 20_000
    with tarfile.open(archive, "r:gz") as tar:
        assert {member.name: tar.extractfile(member).read() for member in tar} == files  # type: ignore[union-attr]
    assert len(gzip.decompress(data)) % tarfile.RECORDSIZE == 0
    assert len(data) <= largest(scan(root))
    assert b"".join(packed(scan(root), Progress())) == data


def test_a_file_that_changes_while_it_is_packed(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(NOISE)
    (tmp_path / "b.bin").write_bytes(NOISE)
    bundle, running = scan(tmp_path), threading.active_count()
    blocks = packed(bundle, Progress())
    next(blocks)
    with (tmp_path / "b.bin").open("r+b") as stream:
        stream.write(b"changed")
    with pytest.raises(BundleError, match=r"b\.bin changed while it was read"):
        list(blocks)
    assert threading.active_count() <= running


def test_names_of_any_length_fit_into_what_is_promised(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path.joinpath(*["é" * 120] * 14)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}").write_bytes(b"")
    bundle = scan(tmp_path)
    assert sum(map(len, packed(bundle, Progress()))) <= largest(bundle)
