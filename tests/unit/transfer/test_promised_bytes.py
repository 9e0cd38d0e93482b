"""What is fetched is never more than was promised, and a manifest that cannot be true is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import resource
import shutil
import tarfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from command import Command

from jobsubmit.agent import fetch
from jobsubmit.agent.fetch import tree_digest
from jobsubmit.agent.protocol import FetchOrder
from jobsubmit.errors import StoreError
from jobsubmit.stores.folder import FolderStore
from jobsubmit.transfer.manifest import read_manifest

CODE = b"print('x')\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(path: str = "a.py", size: int = len(CODE), data: bytes = CODE) -> dict[str, Any]:
    return {"path": path, "mode": "644", "size": size, "sha256": sha256(data)}


def manifest(*files: dict[str, Any], **fields: Any) -> dict[str, Any]:
    digest = tree_digest((f["path"], f["mode"], f["sha256"]) for f in {f["path"]: f for f in files}.values())
    return {"format": 1, "digest": digest, "layout": "tree", "directories": [], "files": list(files), **fields}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a folder that stands in for a store that somebody else can write to."""
    folder = tmp_path / "store"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "a.py").write_bytes(CODE)
    (folder / "start.sh").write_bytes(b"true\n")
    return folder


def order(store: Path, document: dict[str, Any], **code: Any) -> FetchOrder:
    (store / "code.manifest.json").write_text(json.dumps(document))
    whole: Any = {
        "script": {"url": (store / "start.sh").as_uri(), "sha256": sha256(b"true\n")},
        "code_name": "code",
        "code": {
            "layout": "tree",
            "digest": document["digest"],
            "manifest": (store / "code.manifest.json").as_uri(),
            "files": {f["path"]: (store / "code" / f["path"].replace("\0", "_")).as_uri() for f in document["files"]},
            **code,
        },
    }
    return cast("FetchOrder", whole)


def fetched(tmp_path: Path, wanted: FetchOrder) -> str:
    """Return why a node does not fetch something; nothing of it may be in place."""
    target = tmp_path / "node"
    target.mkdir()
    with pytest.raises(fetch.fetch_errors()) as caught:
        fetch.fetch(wanted, str(target))
    assert list(target.iterdir()) == []
    return str(caught.value)


def test_what_was_promised_is_fetched(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "node"
    target.mkdir()
    fetch.fetch(order(store, manifest(entry())), str(target))
    assert (target / "code" / "a.py").read_bytes() == CODE


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([entry(size=3)], "more than the 3 bytes"),
        ([entry(size=-1)], "invalid size of -1 bytes"),
        ([entry(size=10**18)], "bytes"),
        ([entry(size=10**15)], "has"),
        ([{**entry(), "size": 1.5}], "1.5 bytes"),
        ([{**entry(), "size": True}], "True bytes"),
        ([entry(), entry()], "twice"),
        ([entry("a\0b.py")], "would leave"),
    ],
)
def test_a_node_refuses_sizes_that_cannot_be(
    files: list[dict[str, Any]], why: str, store: Path, tmp_path: Path
) -> None:
    assert why in fetched(tmp_path, order(store, manifest(*files)))


def test_an_object_that_has_grown_writes_no_byte_more(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "code" / "a.py").write_bytes(CODE + bytes(5_000_000))
    written = []
    monkeypatch.setattr(fetch, "CHUNK", 1000)
    remember = fetch.write

    def watched(source: Any, file: str, most: int) -> tuple[str, int]:
        result = remember(source, file, most)
        written.append(Path(file).stat().st_size)
        return result

    monkeypatch.setattr(fetch, "write", watched)
    assert "more than" in fetched(tmp_path, order(store, manifest(entry())))
    assert max(written) < 1000


def test_a_small_archive_with_an_endless_file_is_refused(store: Path, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with gzip.open(packed, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        head = tarfile.TarInfo("a.py")
        head.size = 50_000_000
        tar.addfile(head, io.BytesIO(bytes(head.size)))
    (store / "code.tar.gz").write_bytes(packed.getvalue())
    archive = {"layout": "archive", "archive": (store / "code.tar.gz").as_uri()}
    assert "not the file that was submitted" in fetched(tmp_path, order(store, manifest(entry()), **archive))


def test_an_archive_cannot_hold_more_than_its_manifest_lists(store: Path, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with gzip.open(packed, "wb") as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        head = tarfile.TarInfo("a.py")
        head.pax_headers = {"comment": "x" * 20_000_000}
        head.size = len(CODE)
        tar.addfile(head, io.BytesIO(CODE))
    (store / "code.tar.gz").write_bytes(packed.getvalue())
    archive = {"layout": "archive", "archive": (store / "code.tar.gz").as_uri()}
    assert "more than its manifest lists" in fetched(tmp_path, order(store, manifest(entry()), **archive))


class _Usage(NamedTuple):
    total: int = 10
    used: int = 0
    free: int = 5


def test_a_full_disk_is_known_before_anything_is_fetched(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: _Usage())
    said = fetched(tmp_path, order(store, manifest(entry())))
    assert f"it needs {len(CODE)} bytes" in said
    assert "has only 5 left" in said


@pytest.mark.parametrize(
    "document",
    [
        manifest(entry(size=-1)),
        manifest(entry(size=1 << 60)),
        manifest(entry(), entry()),
        manifest(entry("a\0b")),
        manifest(entry(), files={}),
        manifest({**entry(), "size": True}),
    ],
)
def test_a_client_takes_no_manifest_that_cannot_be(document: dict[str, Any]) -> None:
    assert read_manifest(json.dumps(document).encode(), "s3://b/code") is None


def test_a_newer_manifest_is_refused_and_never_overwritten(jobsubmit: Command, store: Path, tmp_path: Path) -> None:
    newer = json.dumps(manifest(entry(), format=2, more="unknown"))
    (store / "code.manifest.json").write_text(newer)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").write_text("mine\n")
    for command in (("upload", "mine", store / "code"), ("download", store / "code", "back")):
        assert "a newer version of jobsubmit" in jobsubmit(*command, code=4).stderr
    assert (store / "code.manifest.json").read_text() == newer
    assert (store / "code" / "a.py").read_bytes() == CODE
    assert not list((tmp_path / "back").glob("*"))


def test_a_download_takes_no_byte_more_than_promised(jobsubmit: Command, store: Path, tmp_path: Path) -> None:
    (store / "code.manifest.json").write_text(json.dumps(manifest(entry())))
    (store / "code" / "a.py").write_bytes(CODE * 10)
    assert "bytes that were expected" in jobsubmit("download", store / "code", "back", code=4).stderr
    assert not (tmp_path / "back" / "a.py").exists()


@pytest.mark.parametrize("most", [0, 4])
def test_a_folder_store_gives_no_more_than_asked_for(most: int, store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected"):
        FolderStore(store).get_to("code/a.py", tmp_path / "file", most)
    assert (tmp_path / "file").stat().st_size <= most


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["file", "manifest"])
def test_a_pipe_in_a_store_keeps_nobody(what: str, jobsubmit: Command, store: Path, tmp_path: Path) -> None:
    wanted = order(store, manifest(entry()))
    place = store / ("code/a.py" if what == "file" else "code.manifest.json")
    place.unlink()
    os.mkfifo(place)
    jobsubmit("download", store / "code", "back", code=4 if what == "file" else 0)  # without a manifest the sizes count
    assert "is not a file" in fetched(tmp_path, wanted)


def test_what_is_no_manifest_by_its_size_is_not_read(
    jobsubmit: Command, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (store / "code.manifest.json").open("wb") as stream:
        stream.truncate(1 << 33)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "bytes that were expected" in jobsubmit("download", store / "code", "back", code=4).stderr
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 800_000


@pytest.mark.parametrize("field", ["directories", "files"])
def test_a_path_of_a_thousand_folders_is_no_path(field: str, jobsubmit: Command, store: Path) -> None:
    deep = "b/" * 3000 + "c"
    document = manifest() if field == "directories" else manifest(entry(deep))
    document |= {"directories": ["a", deep]} if field == "directories" else {}
    files = ((f["path"], f["mode"], f["sha256"]) for f in document["files"])
    document["digest"] = tree_digest(files, document["directories"])
    (store / "code.manifest.json").write_text(json.dumps(document))
    jobsubmit("download", store / "code", "back", code=4)


def test_a_node_waits_seven_seconds_for_a_store_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    with pytest.raises(fetch.FetchError):
        fetch.download("http://127.0.0.1:9/nothing", str(tmp_path / "file"), 10)
    assert pauses == [1, 2, 4]
