"""Archives: what shrinks is compressed, what does not is stored, and any gzip reads both."""

from __future__ import annotations

import gzip
import hashlib
import random
import tarfile
from pathlib import Path

import pytest

from jobsubmit.bundle.scanner import scan
from jobsubmit.transfer.archive import pack
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
    sha256, size = pack(scan(root), archive, Progress())
    data = archive.read_bytes()
    assert (sha256, size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert size <= most * sum(map(len, files.values())) + 20_000
    with tarfile.open(archive, "r:gz") as tar:
        assert {member.name: tar.extractfile(member).read() for member in tar} == files  # type: ignore[union-attr]
    assert len(gzip.decompress(data)) % tarfile.RECORDSIZE == 0
    assert pack(scan(root), tmp_path / "again.tar.gz", Progress()) == (sha256, size)
