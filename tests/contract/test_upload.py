"""Bundle → store → node: both layouts, both stores, and nothing that a node would take for what it is not."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import PATIENCE
from hostile import HOSTILE

from jobsubmit.agent import fetch as fetching
from jobsubmit.agent.isolated_python import agent_command
from jobsubmit.agent.protocol import FetchOrder
from jobsubmit.bundle.model import Bundle
from jobsubmit.bundle.scanner import scan
from jobsubmit.common.resources import starter_job
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.config import load_settings
from jobsubmit.errors import BundleError, StoreError
from jobsubmit.plan.launch_plan import build_plan
from jobsubmit.plan.script import Script, render
from jobsubmit.spec.job_spec import Layout
from jobsubmit.spec.loader import load
from jobsubmit.stores.opening import open_store
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.transfer import upload as uploading
from jobsubmit.transfer.code_ref import CodeRef, code_ref, place_ref
from jobsubmit.transfer.fetch_plan import fetch_order
from jobsubmit.transfer.upload import UploadSummary, upload_script

LAYOUTS: tuple[Layout, ...] = ("tree", "archive")
AGENT = Path(fetching.__file__).parent


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.needs("minio"))])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(StoreAddress(uri=str(tmp_path / "store")))
    bucket, server = request.getfixturevalue("s3")
    return open_store(StoreAddress(uri=f"s3://{bucket}/jobs", endpoint_url=server.endpoint))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    (root / "pack age").mkdir(parents=True)
    (root / "train.py").write_text("print('hello')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "empty").touch()
    (root / "pack age/large.bin").write_bytes(bytes(range(256)) * 20_000)
    for number, name in enumerate(value.replace("/", "_")[:100] for value in HOSTILE):
        if name and not set(name) & set("\n\r\x01"):
            (root / f"h{number}-{name}").write_text(name)
    return root


@pytest.fixture
def script() -> Script:
    return render(build_plan(load(starter_job("torchrun")).spec, load_settings()))


def upload(store: ObjectStore, bundle: Bundle, ref: CodeRef, **options: Any) -> UploadSummary:
    """Upload as `create` does, with the work directory of the test."""
    return uploading.upload(store, bundle, ref, load_settings().transfer_dir, **options)


def order_for(store: ObjectStore, ref: CodeRef, script: Script) -> FetchOrder:
    """Return the order as for code that somebody uploaded before."""
    return fetch_order(store, store, ref, "job", script, None)


def fetch_command(folder: Path, attempts: int) -> list[str]:
    """Return the words that fetch onto a node, by an agent that tries so often."""
    agent = folder / "agent"
    shutil.copytree(AGENT, agent, ignore=shutil.ignore_patterns("__pycache__"))
    (agent / "fetch.py").write_text((agent / "fetch.py").read_text().replace("ATTEMPTS = 4", f"ATTEMPTS = {attempts}"))
    return [str(agent) if word == str(AGENT) else word for word in agent_command("fetch", str(folder / "node"))]


def sent(store: ObjectStore, bundle: Bundle, layout: Layout, script: Script) -> CodeRef:
    ref = code_ref(store.uri, "job", "code", bundle, layout)
    upload(store, bundle, ref)
    upload_script(store, "job", script)
    return ref


def fetch_on_node(order: Mapping[str, Any], target: Path) -> subprocess.CompletedProcess[str]:
    """Fetch as a node does: a bare Python without site-packages."""
    return subprocess.run(
        agent_command("fetch", str(target)),
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def contents(root: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(file.relative_to(root)): (file.read_bytes(), bool(file.stat().st_mode & 0o100))
        for file in root.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_node_fetches_is_the_directory(
    layout: Layout, store: ObjectStore, code: Path, script: Script, tmp_path: Path
) -> None:
    ref = sent(store, scan(code), layout, script)
    done = fetch_on_node(order_for(store, ref, script), tmp_path / "node")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "node/code") == contents(code)
    assert (tmp_path / "node/start.sh").read_bytes() == script.data
    assert json.loads(done.stdout) == {"script": script.sha256, "code": scan(code).digest}
    assert sorted(path.name for path in (tmp_path / "node").iterdir()) == ["code", "start.sh"]


def test_the_bucket_holds_exactly_the_tree_and_its_manifest(store: ObjectStore, code: Path, script: Script) -> None:
    bundle = scan(code)
    ref = sent(store, bundle, "tree", script)
    assert ref.uri == f"{store.uri}/job/{bundle.digest}/code"
    objects = {info.key for info in store.list("")}
    tree = {f"job/{bundle.digest}/code/{file.path}" for file in bundle.files}
    others = {f"job/{bundle.digest}/code.manifest.json", f"job/scripts/{script.sha256}.sh"}
    assert objects == tree | others
    for file in bundle.files:
        assert store.get(f"{ref.key}/{file.path}") == Path(file.source).read_bytes()
    manifest = json.loads(store.get(f"{ref.key}.manifest.json"))
    assert manifest["files"] == [file.entry() for file in bundle.files]


def test_archives_are_the_same_bytes_for_the_same_tree(store: ObjectStore, code: Path, script: Script) -> None:
    ref = sent(store, scan(code), "archive", script)
    first = store.get(ref.key)
    for file in code.rglob("*"):
        file.touch()
    store.delete(f"{ref.key}.manifest.json")
    sent(store, scan(code), "archive", script)
    assert store.get(ref.key) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        members = tar.getmembers()
    assert {(m.uid, m.gid, m.mtime, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert [m.name for m in members] == sorted(m.name for m in members)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_code_is_not_sent_again(
    layout: Layout, store: ObjectStore, code: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = sent(store, scan(code), layout, script)
    puts: list[str] = []
    monkeypatch.setattr(type(store), "put", lambda self, key, *args, **options: puts.append(key))
    summary = upload(store, scan(code), ref)
    upload_script(store, "job", script)
    assert puts == []
    assert summary.skipped == len(scan(code).files)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupted_upload_does_not_count(
    layout: Layout, store: ObjectStore, code: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = scan(code)
    ref = code_ref(store.uri, "job", "code", bundle, layout)
    put = type(store).put

    def failing(self: ObjectStore, key: str, *args: Any, **options: Any) -> Any:
        if key.endswith((".tar.gz", "large.bin")):
            raise StoreError("the line is dead")
        return put(self, key, *args, **options)

    with monkeypatch.context() as broken:
        broken.setattr(type(store), "put", failing)
        broken.setattr(type(store), "put_stream", failing)
        with pytest.raises(StoreError, match="the line is dead"):
            upload(store, bundle, ref)
    with pytest.raises(StoreError, match="the upload is incomplete"):
        order_for(store, ref, script)
    assert upload(store, bundle, ref).files > 0
    assert store.head(f"{ref.key}.manifest.json") is not None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_changes_after_the_scan_is_an_error(
    layout: Layout, store: ObjectStore, code: Path, script: Script
) -> None:
    bundle = scan(code)
    (code / "train.py").write_text("print('HELLO')\n")
    ref = code_ref(store.uri, "job", "code", bundle, layout)
    with pytest.raises(BundleError, match="changed"):
        upload(store, bundle, ref)
    with pytest.raises(StoreError, match=r"manifest is missing|the upload is incomplete"):
        order_for(store, ref, script)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_that_was_tidied_up_is_filled_again(
    layout: Layout, store: ObjectStore, code: Path, script: Script, tmp_path: Path
) -> None:
    ref = sent(store, scan(code), layout, script)
    store.delete(ref.key if layout == "archive" else f"{ref.key}/train.py")
    assert upload(store, scan(code), ref).files > 0
    done = fetch_on_node(order_for(store, ref, script), tmp_path / "node")
    assert done.returncode == 0, done.stderr


def test_code_that_somebody_else_uploaded(store: ObjectStore, script: Script, tmp_path: Path) -> None:
    import hashlib

    for path in ("train.py", "sub/a b.txt"):
        store.put(f"mine/{path}", path.encode(), hashlib.sha256(path.encode()).hexdigest())
    upload_script(store, "job", script)
    order = order_for(store, place_ref(f"{store.uri}/mine", "mine"), script)
    done = fetch_on_node(order, tmp_path / "node")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "node/mine") == {
        "train.py": (b"train.py", False),
        "sub/a b.txt": (b"sub/a b.txt", False),
    }
    with pytest.raises(StoreError, match="no code found"):
        order_for(store, place_ref(f"{store.uri}/none", "none"), script)


def tampered(folder: Path, members: list[tuple[tarfile.TarInfo, bytes]], files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an order for an archive and a manifest that somebody else made."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "code.tar.gz", "w:gz") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (folder / "manifest.json").write_text(json.dumps({"files": files}))
    (folder / "start.sh").write_bytes(b"true\n")
    return {
        "script": {"url": (folder / "start.sh").as_uri(), "sha256": _sha(b"true\n")},
        "code": {
            "layout": "archive",
            "manifest": (folder / "manifest.json").as_uri(),
            "digest": fetching.tree_digest([(f["path"], f["mode"], f["sha256"]) for f in files]),
            "archive": (folder / "code.tar.gz").as_uri(),
        },
        "code_name": "code",
    }


def _sha(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def entry(path: str, data: bytes = b"x") -> dict[str, Any]:
    return {"path": path, "mode": "644", "size": len(data), "sha256": _sha(data)}


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("members", "files", "message"),
    [
        ([(member("../evil"), b"x")], [entry("../evil")], "would leave the code folder"),
        ([(member("/evil"), b"x")], [entry("/evil")], "would leave the code folder"),
        ([(member("a/../../evil"), b"x")], [entry("a/../../evil")], "would leave the code folder"),
        ([(member("a"), b"x"), (member("b"), b"x")], [entry("a")], "does not list"),
        ([(member("a", tarfile.SYMTYPE, "/etc"), b"")], [entry("a")], "does not list"),
        ([(member("a", tarfile.LNKTYPE, "/etc/passwd"), b"")], [entry("a")], "does not list"),
        ([(member("a", tarfile.FIFOTYPE), b"")], [entry("a")], "does not list"),
        ([(member("a"), b"y")], [entry("a")], "is not the file that was submitted"),
        ([(member("a"), b"x"), (member("a"), b"x")], [entry("a")], "does not list"),
        ([(member("a"), b"x")], [entry("a"), entry("b")], "lacks b"),
    ],
)
def test_a_node_refuses_what_was_not_submitted(
    members: list[tuple[tarfile.TarInfo, bytes]], files: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    done = fetch_on_node(tampered(tmp_path / "store", members, files), tmp_path / "node")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "node").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_a_node_refuses_another_script_another_manifest_and_half_an_archive(tmp_path: Path) -> None:
    good = [(member("a"), b"x")], [entry("a")]
    for change, message in (
        (lambda order: order["script"].update(sha256="0" * 64), "start script"),
        (lambda order: order["code"].update(digest="0" * 64), "manifest in the store does not belong"),
        (lambda order: _truncate(tmp_path / "store/code.tar.gz"), "could not be fetched"),
    ):
        order = tampered(tmp_path / "store", *good)
        change(order)
        done = fetch_on_node(order, tmp_path / "node")
        assert done.returncode == 1
        assert message in done.stderr
        assert list((tmp_path / "node").iterdir()) == []


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "start.sh"])
def test_a_node_refuses_a_folder_name_that_would_hit_something_else(name: str, tmp_path: Path) -> None:
    order = tampered(tmp_path / "store", [(member("a"), b"x")], [entry("a")])
    done = fetch_on_node({**order, "code_name": name}, tmp_path / "node")
    assert done.returncode == 1
    assert "cannot be the name" in done.stderr


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nx"]
)
def test_a_node_copes_with_a_server_that_answers_nonsense(answer: bytes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer_always, args=(server, answer), daemon=True).start()
        order = tampered(tmp_path / "store", [(member("a"), b"x")], [entry("a")])
        order["code"]["archive"] = f"http://127.0.0.1:{server.getsockname()[1]}/code.tar.gz"
        command = fetch_command(tmp_path, attempts=2)
        done = subprocess.run(
            command,
            input=json.dumps(order),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert "could not be fetched" in done.stderr
    assert "Traceback" not in done.stderr


def _answer_always(server: socket.socket, answer: bytes) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_a_node_says_which_address_failed_but_not_its_signature(tmp_path: Path) -> None:
    order = tampered(tmp_path / "store", [(member("a"), b"x")], [entry("a")])
    order["code"]["archive"] = "http://127.0.0.1:9/bucket/code.tar.gz?X-Amz-Signature=topsecret"
    command = fetch_command(tmp_path, attempts=1)
    done = subprocess.run(
        command,
        input=json.dumps(order),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "http://127.0.0.1:9/bucket/code.tar.gz" in done.stderr
    assert "topsecret" not in done.stderr
