"""`jobsubmit upload` and `download` as a tool of their own: every name, both layouts, both kinds of store."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from bucket import Bucket, contents, make
from command import PATIENCE, Command
from proxy import Proxy

NAMES = [
    "two words/  spaces  ",
    "h#sh ? per%cent & a+b/50%25.txt",
    "-leading-dash/--flag",
    "caf\u00e9/nfc",
    "cafe\u0301/nfd",
    "emoji 🚀/日本語.py",
    "Case/readme",
    "case/README",
    "quote'\"`$(id)/back\\slash",
    "tilde~/a=b,c;d:e@f!",
    "l" * 255,
    "日" * 85,
    ".hidden/.env.py",
    "line\nbreak\ttab\x7f",
]


@dataclass(frozen=True)
class Place:
    """Say where a test uploads to."""

    uri: str
    flags: tuple[str, ...]


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.needs("minio"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(str(tmp_path / "place/code"), ())
    bucket: Bucket = request.getfixturevalue("bucket")
    return Place(f"s3://{bucket.name}/code", ("--endpoint-url", bucket.server.endpoint))


def everything(root: Path) -> dict[str, tuple[bytes, bool] | None]:
    """Return each file with its content and whether it may be run; an empty folder as None."""
    found: dict[str, tuple[bytes, bool] | None] = {}
    for folder, folders, files in os.walk(root, followlinks=True):
        for path in (Path(folder) / name for name in files):
            executable = bool(path.stat().st_mode & stat.S_IXUSR)
            found[path.relative_to(root).as_posix()] = path.read_bytes(), executable
        if not files and not folders:
            found[Path(folder).relative_to(root).as_posix()] = None
    return found


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Return a directory with every kind of thing that can be uploaded."""
    root = tmp_path / "odd"
    for name in NAMES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "empty.txt").touch()
    (root / "empty/folder").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "hard").hardlink_to(root / "run.sh")
    with (root / "sparse").open("wb") as stream:
        stream.truncate(5 << 20)
    (root / "link").symlink_to("run.sh")
    (root / "linked folder").symlink_to("Case")
    return root


@pytest.mark.parametrize("flags", [[], ["--archive"]], ids=["tree", "archive"])
def test_what_comes_back_is_what_went(
    flags: list[str], odd: Path, place: Place, jobsubmit: Command, tmp_path: Path
) -> None:
    done = jobsubmit.json("upload", odd, place.uri, *place.flags, *flags)
    assert done["empty_directories"] == ["empty/folder"]
    fetched = jobsubmit.json("download", place.uri, "back", *place.flags)
    assert everything(tmp_path / "back") == everything(odd)
    assert not any(path.is_symlink() for path in (tmp_path / "back").rglob("*"))
    assert fetched["digest"] == done["digest"]
    assert fetched["files"] == done["files"] == len(contents(odd)) + 1  # a link to a folder is followed
    again = jobsubmit.json("download", place.uri, "back", *place.flags)
    assert (again["files"], again["skipped"]) == (0, done["files"])


@pytest.mark.needs("minio")
def test_the_bucket_holds_every_name_as_it_is(odd: Path, bucket: Bucket, jobsubmit: Command) -> None:
    jobsubmit("upload", odd, f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    assert {name for name in bucket.tree("code") if "linked folder" not in name} == set(contents(odd))


@pytest.mark.needs("minio")
def test_the_longest_key_and_one_that_is_longer(bucket: Bucket, jobsubmit: Command, tmp_path: Path) -> None:
    root = tmp_path / "code"
    longest = "/".join(letter * 254 for letter in "abcd")  # 1,024 bytes with `code/`
    (root / longest).parent.mkdir(parents=True)
    (root / longest).write_text("x")
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    jobsubmit("upload", root, *where)
    assert set(bucket.tree("code")) == {longest}
    (root / (longest + "d")).write_text("x")
    refused = jobsubmit("upload", root, *where, code=4)
    assert "the key is 1025 bytes long, the limit of a bucket is 1024" in refused.stderr
    assert set(bucket.tree("code")) == {longest}
    assert bucket.manifest("code") is not None
    jobsubmit("upload", root, *where, "--archive")


def test_a_folder_is_looked_at_each_time(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    (root / "p1/f1.py").chmod(0o755)
    for flags in ([], ["--archive"]):
        jobsubmit("upload", root, tmp_path / "place/code", *flags)
        shutil.rmtree(tmp_path / "place/code", ignore_errors=True)
        (tmp_path / "place/code.tar.gz").unlink(missing_ok=True)
        assert jobsubmit.json("upload", root, tmp_path / "place/code", *flags)["files"] == 5
    jobsubmit("upload", root, tmp_path / "place/code")
    assert everything(tmp_path / "place/code") == everything(root)


def test_what_is_no_file_is_noted(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 3)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "socket"))
        done = jobsubmit("upload", root, tmp_path / "place/code")
    assert "note: pipe: not a regular file, left out" in done.stderr
    assert "note: socket: not a regular file, left out" in done.stderr
    assert contents(tmp_path / "place/code") == {n: d for n, d in contents(root).items() if n not in ("pipe", "socket")}


def test_a_file_that_cannot_be_read_is_named(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 3)
    (root / "secret").write_text("x")
    (root / "secret").chmod(0)
    if os.access(root / "secret", os.R_OK):  # as root, nothing is unreadable but what lies elsewhere
        (root / "secret").unlink()
        (root / "secret").symlink_to("/proc/self/mem")
    refused = jobsubmit("upload", root, tmp_path / "place/code", code=2)
    assert "secret" in refused.stderr
    assert not (tmp_path / "place").exists()


# ── what changed ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_what_changed_is_sent(place: Place, jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 10)
    assert jobsubmit.json("upload", root, place.uri, *place.flags)["files"] == 11
    (root / "p1/f1.py").write_text("new\n")
    (root / "p0/f0.py").rename(root / "renamed.py")
    (root / "p2/f2.py").chmod(0o755)
    dry = jobsubmit.json("upload", root, place.uri, *place.flags, "--dry-run")
    assert [file["path"] for file in dry["send"]] == ["p1/f1.py", "renamed.py"]
    done = jobsubmit.json("upload", root, place.uri, *place.flags)
    assert (done["files"], done["skipped"], done["bytes"]) == (2, 9, 4 + (root / "renamed.py").stat().st_size)
    jobsubmit("download", place.uri, "back", *place.flags)
    assert everything(tmp_path / "back") == everything(root)


def test_what_else_lies_there_stays_unless_it_shall_go(place: Place, jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 5)
    jobsubmit("upload", root, place.uri, *place.flags)
    (root / "p3/f3.py").unlink()
    dry = jobsubmit.json("upload", root, place.uri, *place.flags, "--delete", "--dry-run")
    assert dry["delete"] == ["code/p3/f3.py"]
    assert (
        "would remove code/p3/f3.py"
        in jobsubmit("upload", root, place.uri, *place.flags, "--delete", "--dry-run").stdout
    )
    assert jobsubmit.json("upload", root, place.uri, *place.flags)["deleted"] == []
    assert jobsubmit.json("upload", root, place.uri, *place.flags, "--delete", "--dry-run")["delete"]
    removed = jobsubmit("upload", root, place.uri, *place.flags, "--delete")
    assert "removed code/p3/f3.py" in removed.stderr
    assert "; 1 removed" in removed.stdout
    assert jobsubmit.json("upload", root, place.uri, *place.flags, "--delete")["deleted"] == []


def test_a_file_that_becomes_a_folder_and_back(place: Place, jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 5)
    (root / "thing").write_text("a file")
    jobsubmit("upload", root, place.uri, *place.flags)
    (root / "thing").unlink()
    (root / "thing/in").mkdir(parents=True)
    (root / "thing/in/it").write_text("a folder")
    jobsubmit("upload", root, place.uri, *place.flags)
    jobsubmit("download", place.uri, "one", *place.flags)
    assert everything(tmp_path / "one") == everything(root)
    (root / "thing/in/it").unlink()
    (root / "thing/in").rmdir()
    (root / "thing").rmdir()
    (root / "thing").write_text("a file again")
    jobsubmit("upload", root, place.uri, *place.flags)
    jobsubmit("download", place.uri, "two", *place.flags)
    assert everything(tmp_path / "two") == everything(root)


@pytest.mark.needs("minio")
def test_recheck_finds_what_the_manifest_does_not_tell(bucket: Bucket, jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 10)
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    jobsubmit("upload", root, *where)
    same_size = b"?" * (root / "p1/f1.py").stat().st_size
    bucket.client.put_object(Bucket=bucket.name, Key="code/p1/f1.py", Body=same_size)
    bucket.client.delete_object(Bucket=bucket.name, Key="code/p2/f2.py")
    assert jobsubmit.json("upload", root, *where)["files"] == 0
    assert jobsubmit.json("upload", root, *where, "--recheck")["files"] == 2
    bucket.assert_whole("code", root)
    jobsubmit("upload", root, *where, "--archive")
    bucket.client.put_object(Bucket=bucket.name, Key="code.tar.gz", Body=b"damaged")
    assert jobsubmit.json("upload", root, *where, "--archive", "--recheck")["files"] == 11
    jobsubmit("download", where[0] + ".tar.gz", "back", *where[1:])
    assert contents(tmp_path / "back") == contents(root)


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.needs("minio")
@pytest.mark.parametrize("flags", [[], ["--archive"]], ids=["tree", "archive"])
def test_how_many_requests_it_takes(
    flags: list[str], bucket: Bucket, line: Proxy, jobsubmit: Command, tmp_path: Path
) -> None:
    root = make(tmp_path / "code", 60)

    def requests() -> int:
        line.seen.clear()
        told: int = jobsubmit.json("upload", root, f"s3://{bucket.name}/x", "--endpoint-url", line.endpoint, *flags)[
            "requests"
        ]
        assert told == len(line.seen)
        return told

    assert requests() == (61 + 2 if not flags else 3)
    assert requests() == 1
    assert sum(seen.size for seen in line.seen) == 0
    (root / "p0/f0.py").write_text("changed\n")
    assert requests() == 4
    if not flags:
        sent = [seen.size for seen in line.seen if "/x/" in seen.path]
        assert sent == [len("changed\n")]


@pytest.mark.needs("minio")
def test_a_new_snapshot_copies_large_files_on_the_server(
    bucket: Bucket, line: Proxy, jobsubmit: Command, tmp_path: Path
) -> None:
    from jobsubmit.bundle.scanner import scan
    from jobsubmit.common.store_address import StoreAddress
    from jobsubmit.stores.opening import open_store
    from jobsubmit.transfer.code_ref import code_ref
    from jobsubmit.transfer.upload import upload

    root = make(tmp_path / "code", 10)
    store = open_store(StoreAddress(f"s3://{bucket.name}/jobs", endpoint_url=line.endpoint))

    def snapshot() -> tuple[str, int]:
        bundle = scan(root)
        ref = code_ref(store.uri, "job", "code", bundle, "tree")
        line.seen.clear()
        return f"jobs/{ref.key}", upload(store, bundle, ref, tmp_path / "work").copied

    first, copied = snapshot()
    assert copied == 0
    (root / "p0/f0.py").write_text("changed\n")
    second, copied = snapshot()
    assert copied == 1
    assert [seen.path for seen in line.seen if "x-amz-copy-source" in seen.headers] == [
        f"/{bucket.name}/{second}/large.bin"
    ]
    assert max(seen.size for seen in line.seen) < 1 << 20
    bucket.assert_whole(second, root)
    assert bucket.manifest(first) is not None
    # A copy is proven: what somebody put in its place is not taken over.
    bucket.client.put_object(Bucket=bucket.name, Key=f"{second}/large.bin", Body=b"?" * (3 << 20))
    (root / "p0/f0.py").write_text("changed again\n")
    third, copied = snapshot()
    assert copied == 0
    bucket.assert_whole(third, root)


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_summary_says_what_was_done(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    said = jobsubmit("upload", root, tmp_path / "place/code")
    size = sum(len(data) for data in contents(root).values())
    assert f"{tmp_path}/place/code: 5 files sent ({size:,} bytes), 0 unchanged; " in said.stdout
    assert " MB/s" in said.stdout
    assert f"an input: {tmp_path}/place/code" in said.stderr
    fetched = jobsubmit("download", tmp_path / "place/code", "back")
    assert f"5 files fetched ({size:,} bytes), 0 unchanged" in fetched.stdout
    assert "verified with its manifest" in fetched.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["code", "code"], "itself, or contains it"),
        (["code/p0", "code"], "itself, or contains it"),
        (["", "place/code"], "DIR: must not be empty"),
        (["code", "place/x.tar.gz"], "is reserved for archives and manifests"),
        (["code", "place/x.manifest.json"], "is reserved for archives and manifests"),
        (["code", "s3://"], "must name a folder in the bucket"),
        (["code", "s3:///x"], "must name a"),
        (["code", "code/p0/f0.py"], "is a file"),
        (["code", "s3://bucket"], "must name a folder in the bucket"),
        (["code", "place/.."], "must end in the name of a folder"),
        (["code", "place/x", "--archive", "--delete"], "an archive is always replaced as a whole"),
        (["code", "place/x", "--region", "here"], "a folder takes no server options"),
        (["code", "s3://bucket/x", "--endpoint-url", "minio"], "must be an address like"),
        (["code", "gs://bucket/x"], "unknown scheme"),
        (["code", "place/caf\udce9"], "is not UTF-8"),
        (["code", "place/x", "--nonsense"], "--nonsense"),
    ],
)
@pytest.mark.parametrize("delete", [False, True])
def test_what_cannot_be_meant_is_refused_and_nothing_is_touched(
    arguments: list[str], message: str, jobsubmit: Command, tmp_path: Path, *, delete: bool
) -> None:
    make(tmp_path / "code", 4)
    before = contents(tmp_path)
    flags = ["--delete"] if delete and "--delete" not in arguments else []
    assert message in jobsubmit("upload", *arguments, *flags, code=2).stderr
    assert contents(tmp_path) == before


def test_what_is_not_ours_at_a_place_is_left_alone(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    (root / "lib").write_text("a file")
    mine = tmp_path / "place/code/lib/notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    for _ in range(2):
        refused = jobsubmit("upload", root, tmp_path / "place/code", code=4)
        assert "lib" in refused.stderr
        assert mine.read_text() == "precious"
    jobsubmit("upload", root, tmp_path / "place/code", "--delete")
    assert contents(tmp_path / "place/code") == contents(root)
    other = tmp_path / "place/set.manifest.json"
    other.write_text('{"classes": ["cat"]}')
    refused = jobsubmit("upload", root, tmp_path / "place/set", code=4)
    assert "set.manifest.json exists, but is not a manifest of jobsubmit" in refused.stderr
    assert other.read_text() == '{"classes": ["cat"]}'
    assert "--force" in refused.stderr
    jobsubmit("upload", root, tmp_path / "place/set", "--force", "--dry-run")
    assert other.read_text() == '{"classes": ["cat"]}'
    jobsubmit("upload", root, tmp_path / "place/set", "--force")
    jobsubmit("download", tmp_path / "place/set", tmp_path / "set")
    assert contents(tmp_path / "set") == contents(root)


def test_odd_things_in_a_place(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    place = tmp_path / "place/code"
    place.mkdir(parents=True)
    (place / "loop").symlink_to("loop")
    (place / "nothing").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9")).touch()
    jobsubmit("upload", root, place)
    jobsubmit("upload", root, place, "--recheck")
    assert jobsubmit.json("upload", root, place, "--delete")["deleted"] == [
        b"code/caf\xe9".decode("utf-8", "surrogateescape")
    ]
    jobsubmit("download", place, "back")
    assert contents(tmp_path / "back") == contents(root)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from jobsubmit.bundle.scanner import scan
    from jobsubmit.stores.folder import FolderStore
    from jobsubmit.transfer.code_ref import place_ref
    from jobsubmit.transfer.upload import upload

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    root = make(tmp_path / "code", 4)
    store = FolderStore(tmp_path / "place")
    assert upload(store, scan(root), place_ref(f"{store.uri}/code", "code"), tmp_path / "work").files == 5


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "must be an address like"),
        ({"AWS_CONFIG_FILE": "broken", "AWS_ACCESS_KEY_ID": ""}, "broken"),
        ({"AWS_PROFILE": "nobody", "AWS_ACCESS_KEY_ID": ""}, "nobody"),
    ],
)
def test_settings_that_cannot_be_used(
    env: dict[str, str], message: str, jobsubmit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "code", 4)
    (tmp_path / "broken").write_text("[default\nnonsense")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    refused = jobsubmit("upload", root, "s3://some-bucket/code", code=4, env=env)
    assert message in refused.stderr
    assert "bug" not in refused.stderr
    assert "topsecret" not in refused.stderr


def test_an_upload_into_its_own_directory_is_the_same_the_second_time(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    before = contents(root)
    for flags in ([], ["--archive"]):
        first = jobsubmit.json("upload", root, root / "out/code", *flags)
        again = jobsubmit.json("upload", root, f"file://{root}/out/code", *flags)
        assert (first["files"], again["files"]) == (5, 0)
        assert first["digest"] == again["digest"]
    jobsubmit("download", root / "out/code", "back")
    assert contents(tmp_path / "back") == before


def test_a_state_directory_that_cannot_be_used(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    (tmp_path / "file").touch()
    refused = jobsubmit("upload", root, tmp_path / "x/code", code=2, env={"JOBSUBMIT_STATE_DIR": f"{tmp_path}/file/s"})
    assert "JOBSUBMIT_STATE_DIR" in refused.stderr


def test_a_second_upload_says_that_it_waits(jobsubmit: Command, tmp_path: Path) -> None:
    import fcntl

    root = make(tmp_path / "code", 4)
    jobsubmit("upload", root, tmp_path / "place/code")
    (lock,) = (tmp_path / "state/transfer").glob("*.lock")
    with lock.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        second = jobsubmit.start("upload", root, tmp_path / "place/code")
        assert second.stderr
        assert "is under way: waiting for it" in second.stderr.readline()
        assert second.poll() is None
    second.communicate(timeout=PATIENCE)
    assert second.returncode == 0


def test_a_download_leaves_alone_what_is_not_its_own(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    (root / "thing").write_text("a file")
    jobsubmit("upload", root, tmp_path / "place/code")
    back = tmp_path / "back"
    (back / "thing").mkdir(parents=True)
    (back / "thing/mine").write_text("precious")
    (back / "other").write_text("precious, too")
    refused = jobsubmit("download", tmp_path / "place/code", back, code=4)
    assert "thing" in refused.stderr
    assert (back / "thing/mine").read_text() == "precious"
    (back / "thing/mine").unlink()
    jobsubmit("download", tmp_path / "place/code", back)
    assert contents(back) == {**contents(root), "other": b"precious, too"}


def test_a_download_follows_no_link_out_of_its_directory(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 10)
    jobsubmit("upload", root, tmp_path / "place/code")
    (tmp_path / "outside").mkdir()
    (tmp_path / "back").mkdir()
    (tmp_path / "back/p1").symlink_to("../outside")
    refused = jobsubmit("download", tmp_path / "place/code", "back", code=4)
    assert "would be written outside" in refused.stderr
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_damaged_object_is_not_put_in_place(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    jobsubmit("upload", root, tmp_path / "place/code")
    damaged = tmp_path / "place/code/p1/f1.py"
    damaged.write_bytes(b"?" * damaged.stat().st_size)
    refused = jobsubmit("download", tmp_path / "place/code", "back", code=4)
    assert "p1/f1.py differs from the file that was uploaded" in refused.stderr
    assert not (tmp_path / "back/p1/f1.py").exists()
    assert not list((tmp_path / "back").glob(".jobsubmit-*"))


@pytest.mark.needs("minio")
def test_what_somebody_else_uploaded_is_fetched_too(bucket: Bucket, jobsubmit: Command, tmp_path: Path) -> None:
    for name in ("train.py", "a b/c#d.txt"):
        bucket.client.put_object(Bucket=bucket.name, Key=f"theirs/{name}", Body=name.encode())
    bucket.client.put_object(Bucket=bucket.name, Key="theirs/marker/", Body=b"")
    where = (f"s3://{bucket.name}/theirs", "back", "--endpoint-url", bucket.server.endpoint)
    assert "no manifest: compared sizes and ETags" in jobsubmit("download", *where).stdout
    assert contents(tmp_path / "back") == {"train.py": b"train.py", "a b/c#d.txt": b"a b/c#d.txt"}
    nothing = jobsubmit("download", f"s3://{bucket.name}/none", "back", *where[2:], code=4)
    assert "there is nothing" in nothing.stderr


@pytest.mark.needs("minio")
def test_folder_markers_do_not_take_files_with_them(bucket: Bucket, jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    bucket.client.put_object(Bucket=bucket.name, Key="code/p1/", Body=b"")
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    jobsubmit("upload", root, *where, "--delete")
    bucket.assert_whole("code", root)


def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "jobsubmit", "upload", str(root), str(tmp_path / "place/code")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while block := os.read(ours, 65536):
            shown += block
    os.close(ours)
    assert process.wait(30) == 0
    assert b"uploading" in shown
    assert b"5 of 5 files" in shown


@pytest.mark.needs("minio")
def test_static_keys_do_not_load_boto3(bucket: Bucket, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    (tmp_path / "credentials").write_text(
        f"[mine]\naws_access_key_id = {bucket.server.key}\naws_secret_access_key = {bucket.server.secret}\n"
    )
    look = (
        "import sys; from jobsubmit.cli import main\n"
        "code = main._guarded(sys.argv[1:])\n"
        "heavy = ('boto3', 'botocore', 'pydantic', 'typer', 'rich')\n"
        "print([name for name in heavy if name in sys.modules]); sys.exit(code)"
    )
    where = (root, f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    without = {name: value for name, value in os.environ.items() if not name.startswith("AWS_ACCESS_KEY")}
    for flags, env in (
        ([], dict(os.environ)),
        (["--profile", "mine"], {**without, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}),
    ):
        (root / "p1/f1.py").write_text(json.dumps(flags))
        done = subprocess.run(
            [sys.executable, "-c", look, "upload", *map(str, where), *flags],
            capture_output=True,
            text=True,
            env=env,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]"


def test_yesterdays_leftovers_are_removed(jobsubmit: Command, tmp_path: Path) -> None:
    root = make(tmp_path / "code", 4)
    leftovers = [
        tmp_path / f"place/.jobsubmit-unfinished-{os.getuid()}/tmpold",
        tmp_path / "back/.jobsubmit-unfinished-old/tmp",
    ]
    for file in leftovers:
        file.parent.mkdir(parents=True)
        file.write_text("half")
    yesterday = time.time() - 90_000
    os.utime(leftovers[0], (yesterday, yesterday))
    os.utime(leftovers[1].parent, (yesterday, yesterday))
    jobsubmit("upload", root, tmp_path / "place/code")
    jobsubmit("download", tmp_path / "place/code", "back")
    assert not any(file.exists() for file in leftovers)
    assert sorted(path.name for path in (tmp_path / "place").iterdir()) == ["code", "code.manifest.json"]
