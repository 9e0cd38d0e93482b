"""Whatever breaks between a directory and a bucket: nothing is lost or mixed, and nothing counts that is not whole."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import minio_server
import proxy
import pytest
from bucket import Bucket, contents, make
from command import PATIENCE, Command
from minio_server import Server
from pace import Pace
from proxy import Answer, Fault, Proxy, Reset, Seen, Stall, Truncate
from tiers import slow

from jobsubmit.bundle.scanner import scan
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import BundleError, StoreError
from jobsubmit.stores.s3 import S3Store
from jobsubmit.stores.s3_retry import Limits
from jobsubmit.transfer import lease
from jobsubmit.transfer.code_ref import place_ref
from jobsubmit.transfer.download import download
from jobsubmit.transfer.progress import Progress
from jobsubmit.transfer.upload import UploadSummary, upload

pytestmark = pytest.mark.needs("minio")

QUICK = Limits(connect=2, answer=1, first=1, total=4)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return make(tmp_path / "code")


def send(root: Path, bucket: Bucket, line: Proxy, tmp_path: Path, **options: Any) -> UploadSummary:
    store = S3Store(StoreAddress(f"s3://{bucket.name}", endpoint_url=line.endpoint), QUICK)
    return upload(store, scan(root), place_ref(f"s3://{bucket.name}/code", "code"), tmp_path / "work", **options)


def every(count: int, fault: Fault) -> Callable[[Seen], Fault | None]:
    """Break each `count`th request."""
    numbers, lock = iter(range(1, 1 << 30)), threading.Lock()

    def rule(_: Seen) -> Fault | None:
        with lock:
            return fault if next(numbers) % count == 0 else None

    return rule


# ── what passes ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [
        Reset(),
        Reset(after=100),
        slow(Stall(1.5), id="stall"),
        Answer("503 Slow Down", "SlowDown"),
        Answer("429 Too Many Requests", "TooManyRequests"),
        Answer("500 Internal Server Error", "InternalError"),
    ],
    ids=["reset", "reset in the body", None, "503", "429", "500"],
)
def test_what_passes_is_tried_again(fault: Fault, code: Path, bucket: Bucket, line: Proxy, tmp_path: Path) -> None:
    line.rule = every(4, fault)
    assert send(code, bucket, line, tmp_path).files == 41
    bucket.assert_whole("code", code)
    (code / "p0/f0.py").write_text("changed\n")
    assert send(code, bucket, line, tmp_path).files == 1
    bucket.assert_whole("code", code)


@pytest.mark.parametrize("fault", [Truncate(), Reset(), Answer("503 Slow Down", "SlowDown")])
def test_a_download_over_a_bad_line_is_whole(
    fault: Fault, code: Path, bucket: Bucket, line: Proxy, tmp_path: Path
) -> None:
    send(code, bucket, line, tmp_path)
    line.rule = every(3, fault)
    store = S3Store(StoreAddress(f"s3://{bucket.name}", endpoint_url=line.endpoint), QUICK)
    done = download(store, place_ref(f"s3://{bucket.name}/code", "code"), tmp_path / "out", Progress())
    assert done.files == 41
    assert contents(tmp_path / "out") == contents(code)


@pytest.mark.timeout(60)
def test_a_large_download_goes_on_where_it_broke_off(bucket: Bucket, line: Proxy, tmp_path: Path) -> None:
    data = random.Random(2).randbytes(24 << 20)
    bucket.client.put_object(Bucket=bucket.name, Key="large.bin", Body=data)
    faults: Iterator[Fault] = iter([Truncate(), Truncate()])
    line.rule = lambda seen: next(faults, None) if seen.method == "GET" else None
    store = S3Store(StoreAddress(f"s3://{bucket.name}", endpoint_url=line.endpoint), QUICK)
    assert store.get_to("large.bin", tmp_path / "large.bin", len(data)) == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "large.bin").read_bytes() == data
    assert any("range" in seen.headers for seen in line.seen)


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "server"
    data.mkdir()
    code = make(tmp_path / "code", 400)
    with minio_server.running(data) as first:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", first.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", first.secret)
        bucket = Bucket("restart", first)
        bucket.client.create_bucket(Bucket="restart")
        with proxy.in_front_of(first.endpoint) as line:
            puts = threading.Event()
            line.rule = lambda seen: puts.set() if len(line.seen) > 60 else None
            uploading = threading.Thread(target=lambda: results.append(_patient(code, line, tmp_path)))
            results: list[UploadSummary] = []
            uploading.start()
            assert puts.wait(30)
            os.kill(first.pid, signal.SIGKILL)
            time.sleep(1)
            with minio_server.running(data, port=int(first.endpoint.rpartition(":")[2])):
                uploading.join(60)
                assert results
                assert results[0].files == 401
                bucket.assert_whole("code", code)
        bucket.client.close()


def _patient(code: Path, line: Proxy, tmp_path: Path) -> UploadSummary:
    store = S3Store(StoreAddress("s3://restart", endpoint_url=line.endpoint))
    return upload(store, scan(code), place_ref("s3://restart/code", "code"), tmp_path / "work")


# ── what does not pass ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (Answer("400 Bad Request", "ExpiredToken"), "the session token has expired"),
        (Answer("403 Forbidden", "RequestTimeTooSkewed"), "the clock of this machine"),
        (Answer("507 Insufficient Storage", "XMinioStorageFull"), "the server's disk is full"),
        slow(Answer("503 Slow Down", "SlowDown"), "overloaded"),
        (Answer("403 Forbidden", "AccessDenied"), "the access key has no permission for this"),
        (Answer("404 Not Found", "NoSuchBucket"), "create the bucket first"),
    ],
    ids=lambda value: value.code if isinstance(value, Answer) else "",
)
def test_a_refusal_is_one_clear_error_and_nothing_counts(
    answer: Answer, hint: str, code: Path, bucket: Bucket, line: Proxy, tmp_path: Path, pace: Pace
) -> None:
    line.rule = lambda seen: answer if seen.method == "PUT" and "/p3/" in seen.path else None
    started = time.monotonic()
    with pytest.raises(StoreError) as caught:
        send(code, bucket, line, tmp_path)
    assert hint in caught.value.hint
    assert answer.code in caught.value.message
    assert time.monotonic() - started < pace.stretched(2 * QUICK.total)
    assert bucket.manifest("code") is None
    line.rule = lambda _: None
    send(code, bucket, line, tmp_path)
    bucket.assert_whole("code", code)


@pytest.mark.slow
def test_a_dead_line_ends_at_the_deadline(code: Path, bucket: Bucket, line: Proxy, tmp_path: Path, pace: Pace) -> None:
    line.rule = lambda seen: Stall(20) if "/p2/" in seen.path else None
    started = time.monotonic()
    with pytest.raises(StoreError, match="the server did not answer in time"):
        send(code, bucket, line, tmp_path)
    assert time.monotonic() - started < pace.stretched(QUICK.total + 4)
    assert bucket.manifest("code") is None


@pytest.mark.slow
def test_a_dead_line_ends_at_the_deadline_for_many_larger_files_too(
    bucket: Bucket, line: Proxy, tmp_path: Path, pace: Pace
) -> None:
    root = tmp_path / "code"
    root.mkdir()
    for number in range(40):
        (root / f"p2-{number}.bin").write_bytes(random.Random(number).randbytes(200_000))
    line.rule = lambda seen: Stall(20) if "/p2-" in seen.path else None
    started = time.monotonic()
    with pytest.raises(StoreError):
        send(root, bucket, line, tmp_path)
    assert time.monotonic() - started < pace.stretched(2 * QUICK.total + 4)


@pytest.mark.slow
def test_a_slow_line_is_given_time(bucket: Bucket, line: Proxy, tmp_path: Path) -> None:
    root = tmp_path / "code"
    root.mkdir()
    (root / "p2.bin").write_bytes(random.Random(0).randbytes(24 << 20))
    line.bytes_per_second = 4 << 20  # more than twice as long as an answer may take
    patience = Limits(connect=2, answer=2.5, first=1, total=4)
    store = S3Store(StoreAddress(f"s3://{bucket.name}", endpoint_url=line.endpoint), patience)
    upload(store, scan(root), place_ref(f"s3://{bucket.name}/code", "code"), tmp_path / "work")
    bucket.assert_whole("code", root)


@pytest.mark.parametrize("code_", ["NotImplemented", ""])
def test_a_server_without_conditional_puts(code_: str, bucket: Bucket, line: Proxy, code: Path, tmp_path: Path) -> None:
    def rule(seen: Seen) -> Fault | None:
        is_conditional = seen.method == "PUT" and ("if-match" in seen.headers or "if-none-match" in seen.headers)
        return Answer("501 Not Implemented", code_) if is_conditional else None

    line.rule = rule
    assert send(code, bucket, line, tmp_path).files == 41
    bucket.assert_whole("code", code)
    (code / "p0/f0.py").write_text("changed\n")
    line.seen.clear()
    assert send(code, bucket, line, tmp_path).files == 1
    bucket.assert_whole("code", code)
    assert sum(rule(seen) is not None for seen in line.seen) == 1  # it is asked once
    put_claim(bucket, is_over=True)
    send(code, bucket, line, tmp_path)
    bucket.assert_whole("code", code)


@pytest.mark.parametrize("layout", ["tree", "archive"])
def test_a_first_upload_takes_three_round_trips(
    layout: str, bucket: Bucket, line: Proxy, code: Path, jobsubmit: Command
) -> None:
    """The claim shows that nothing lies there; then all files go at once; then the manifest."""
    where = (f"s3://{bucket.name}/code", "--endpoint-url", line.endpoint)
    jobsubmit("upload", code, *where, *(["--archive"] if layout == "archive" else []))
    manifest = f"/{bucket.name}/code{'.tar.gz' if layout == 'archive' else ''}.manifest.json"
    asked = [(seen.method, seen.path) for seen in line.seen]
    assert asked[0] == asked[-1] == ("PUT", manifest)
    assert line.seen[0].headers["if-none-match"] == "*"
    between = asked[1:-1]
    assert len(between) == (1 if layout == "archive" else 41)
    assert {method for method, _ in between} == {"PUT"}
    line.seen.clear()
    jobsubmit("upload", code, *where, *(["--archive"] if layout == "archive" else []))
    assert [seen.method for seen in line.seen] == ["GET"]  # known here: it is looked at first


def test_who_may_only_read_finds_what_is_there(
    bucket: Bucket, line: Proxy, code: Path, jobsubmit: Command, tmp_path: Path
) -> None:
    where = (f"s3://{bucket.name}/code", "--endpoint-url", line.endpoint)
    jobsubmit("upload", code, *where)
    line.rule = lambda seen: Answer("403 Forbidden", "AccessDenied") if seen.method == "PUT" else None
    elsewhere = {"JOBSUBMIT_STATE_DIR": str(tmp_path / "elsewhere")}
    assert "0 files sent" in jobsubmit("upload", code, *where, env=elsewhere).stdout
    (code / "new.py").write_text("new")
    refused = jobsubmit("upload", code, *where, env={"JOBSUBMIT_STATE_DIR": str(tmp_path / "third")}, code=4)
    assert "AccessDenied" in refused.stderr


def test_a_bucket_whose_tags_are_no_md5(tmp_path: Path, code: Path, jobsubmit: Command) -> None:
    """As where the server encrypts with keys of its own."""
    data = tmp_path / "server"
    data.mkdir()
    with minio_server.running(data, encrypted=True) as server:
        encrypted = Bucket("encrypted", server)
        env = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
        encrypted.client.create_bucket(Bucket="encrypted")
        tag = encrypted.client.put_object(Bucket="encrypted", Key="theirs/x", Body=b"x")["ETag"]
        assert hashlib.md5(b"x").hexdigest() not in tag
        for uri, flags in (("s3://encrypted/code", ()), ("obs://encrypted/code2", ("--addressing", "path"))):
            where = (uri, "--endpoint-url", server.endpoint, *flags)
            jobsubmit("upload", code, *where, env=env)
            assert json.loads(jobsubmit("upload", code, *where, "-o", "json", env=env).stdout)["requests"] == 1
            (code / "p0/f0.py").write_text(uri)
            again = jobsubmit("upload", code, *where, "-o", "json", env=env)
            assert json.loads(again.stdout)["files"] == 1
            encrypted.assert_whole(uri.rpartition("/")[2], code)
        jobsubmit("download", "s3://encrypted/theirs", "back", "--endpoint-url", server.endpoint, env=env)
        assert contents(tmp_path / "back") == {"x": b"x"}
        encrypted.client.close()


@pytest.mark.slow  # what it bounds is a wall time
def test_a_missing_bucket_and_a_dead_server(jobsubmit: Command, s3: tuple[str, Server], code: Path, pace: Pace) -> None:
    refused = jobsubmit("upload", code, "s3://no-such-bucket/x", "--endpoint-url", s3[1].endpoint, code=4)
    assert "NoSuchBucket" in refused.stderr
    assert "create the bucket first" in refused.stderr
    started = time.monotonic()
    dead = jobsubmit("upload", code, f"s3://{s3[0]}/x", "--endpoint-url", "http://127.0.0.1:9", code=4)
    assert time.monotonic() - started < pace.stretched(10)
    assert "onnection refused" in dead.stderr


def test_a_key_that_may_only_read(jobsubmit: Command, bucket: Bucket, code: Path) -> None:
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::*"]}],
    }
    sts = boto3.client("sts", endpoint_url=bucket.server.endpoint, region_name="us-east-1")
    keys = sts.assume_role(RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="reader", Policy=json.dumps(policy))[
        "Credentials"
    ]
    sts.close()
    env = {
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        "AWS_SESSION_TOKEN": keys["SessionToken"],
    }
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    refused = jobsubmit("upload", code, *where, code=4, env=env)
    assert "AccessDenied" in refused.stderr
    assert "the access key has no permission for this" in refused.stderr
    assert bucket.objects() == {}
    stale = jobsubmit("upload", code, *where, code=4, env={**env, "AWS_SESSION_TOKEN": "stale"})
    assert "session token" in stale.stderr


def test_a_full_disk_of_the_server(tmp_path: Path, code: Path, jobsubmit: Command) -> None:
    data = tmp_path / "server"
    data.mkdir()
    (code / "random.bin").write_bytes(random.Random(1).randbytes(48 << 20))
    with minio_server.running(data, disk_mb=64) as server:
        env = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
        client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=server.key,
            aws_secret_access_key=server.secret,
        )
        client.create_bucket(Bucket="small")
        for flags in ([], ["--archive"]):
            done = jobsubmit(
                "upload", code, "s3://small/code", "--endpoint-url", server.endpoint, *flags, code=4, env=env
            )
            assert "full" in done.stderr.lower()
            assert "Traceback" not in done.stderr
        objects = client.list_objects(Bucket="small", Prefix="code")
        for item in objects.get("Contents", []):
            if item["Key"].endswith(".manifest.json"):
                data_ = client.get_object(Bucket="small", Key=item["Key"])["Body"].read()
                assert "digest" not in json.loads(data_)
        client.close()


def test_a_full_disk_here(jobsubmit: Command, bucket: Bucket, code: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    packing = jobsubmit.start("upload", code, *where, "--archive", preexec_fn=small_files)
    _, said = packing.communicate(timeout=PATIENCE)
    assert packing.returncode == 0, said  # an archive is packed while it is sent
    jobsubmit("upload", code, *where)
    fetching = jobsubmit.start("download", where[0], "out", *where[1:], preexec_fn=small_files)
    _, said = fetching.communicate(timeout=PATIENCE)
    assert fetching.returncode == 4
    assert "cannot be written" in said
    assert not (tmp_path / "out/large.bin").exists()
    assert not list((tmp_path / "out").glob(".jobsubmit-*"))


# ── files that do not hold still ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["changes", "shrinks", "grows", "vanishes"])
@pytest.mark.parametrize("when", ["before it is sent", "after it was sent"])
def test_a_file_that_does_not_hold_still(
    what: str, when: str, code: Path, bucket: Bucket, line: Proxy, tmp_path: Path
) -> None:
    victim = code / "p1/f1.py"
    acts: dict[str, Callable[[], object]] = {
        "changes": lambda: victim.write_bytes(b"X" * victim.stat().st_size),
        "shrinks": lambda: victim.write_text(""),
        "grows": lambda: victim.write_text(victim.read_text() + "more\n"),
        "vanishes": lambda: victim.unlink(missing_ok=True),
    }
    trigger = "/code.manifest.json" if when == "before it is sent" else "/p1/f1.py"
    done = threading.Event()

    def rule(seen: Seen) -> None:
        if seen.method == "PUT" and trigger in seen.path and not done.is_set():
            done.set()
            time.sleep(0.02)
            acts[what]()

    line.rule = rule
    with pytest.raises(BundleError, match=r"f1\.py changed"):
        send(code, bucket, line, tmp_path)
    assert bucket.manifest("code") is None
    send(code, bucket, line, tmp_path, mirror=True)
    bucket.assert_whole("code", code)


# ── clients that die ────────────────────────────────────────────────────────────────────────────────────────────────


class Reader:
    """Look all the while: a manifest that is the same before and after a look at its objects must be true of them."""

    def __init__(self, bucket: Bucket, place: str) -> None:
        self.bucket, self.place = bucket, place
        self.looks, self.lies = 0, 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            before = self.bucket.manifest(self.place)
            objects = self.bucket.tree(self.place)
            if before is None or self.bucket.manifest(self.place) != before:
                continue
            self.looks += 1
            listed = {f["path"]: f["sha256"] for f in before["files"]}
            self.lies += any(hashlib.sha256(objects.get(p, b"?")).hexdigest() != s for p, s in listed.items())


@contextmanager
def reading(bucket: Bucket, place: str) -> Iterator[Reader]:
    reader = Reader(bucket, place)
    thread = threading.Thread(target=reader.run)
    thread.start()
    try:
        yield reader
    finally:
        reader.over.set()
        thread.join()


@pytest.mark.slow
def test_a_client_killed_at_thirty_points(jobsubmit: Command, bucket: Bucket, tmp_path: Path) -> None:
    dice = random.Random(4)
    root = make(tmp_path / "code", 30)
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    jobsubmit("upload", root, *where)
    killed = 0
    with reading(bucket, "code") as reader:
        for round_ in range(30):
            for number in range(30):
                (root / f"p{number % 5}/f{number}.py").write_text(f"round {round_} file {number}\n")
            process = jobsubmit.start("upload", root, *where)
            time.sleep(dice.uniform(0.05, 0.45))
            process.kill()
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
            if round_ % 5 == 4:
                jobsubmit("upload", root, *where)
                bucket.assert_whole("code", root)
    assert killed >= 10
    assert reader.looks > 0
    assert reader.lies == 0


def wait_for_request(line: Proxy, sign: str) -> None:
    """Return once a request with a sign in its path has come."""
    deadline = time.monotonic() + PATIENCE
    while not any(sign in seen.path for seen in line.seen) and time.monotonic() < deadline:
        time.sleep(0.02)


def interrupt(jobsubmit: Command, line: Proxy, pace: Pace, sign: str, *arguments: str | Path) -> None:
    """Start an upload whose requests with a sign in their path get no answer, and press Ctrl-C during the first."""
    line.rule = lambda seen: Stall(60) if sign in seen.path else None
    process = jobsubmit.start(
        "upload", *arguments, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    )
    wait_for_request(line, sign)
    process.send_signal(signal.SIGINT)
    interrupted = time.monotonic()
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "run the same command again to continue it" in said
    assert time.monotonic() - interrupted < pace.stretched(4)
    line.rule = lambda _: None


@pytest.mark.slow  # what it bounds is a wall time
def test_ctrl_c_leaves_nothing_that_counts(
    jobsubmit: Command, bucket: Bucket, line: Proxy, code: Path, pace: Pace
) -> None:
    where = (f"s3://{bucket.name}/code", "--endpoint-url", line.endpoint)
    interrupt(jobsubmit, line, pace, "/p4/", code, *where)
    assert bucket.manifest("code") is None
    jobsubmit("upload", code, *where)
    bucket.assert_whole("code", code)


def test_ctrl_c_while_parts_are_sent(jobsubmit: Command, bucket: Bucket, line: Proxy, large: Path, pace: Pace) -> None:
    where = (f"s3://{bucket.name}/code", "--endpoint-url", line.endpoint, "--archive")
    interrupt(jobsubmit, line, pace, "partNumber", large, *where)
    assert bucket.manifest("code") is None


@pytest.fixture
def _hears_hang_ups() -> Iterator[None]:
    """Start processes as a shell does: under nohup this one ignores SIGHUP, and so would they."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hears_hang_ups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_asked_to_end_leaves_nothing_behind(
    number: signal.Signals, jobsubmit: Command, bucket: Bucket, line: Proxy, large: Path, tmp_path: Path
) -> None:
    process = stalled(jobsubmit, bucket, line, large, tmp_path / "tmp")
    assert not list((tmp_path / "tmp").iterdir())  # it is packed while it is sent
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == -number, said
    assert "Traceback" not in said
    assert not list((tmp_path / "tmp").iterdir())
    claim = lease.read_lease(bucket.objects()["code.tar.gz.manifest.json"])
    assert claim is not None
    assert claim.is_over  # nobody waits for it


def stalled(jobsubmit: Command, bucket: Bucket, line: Proxy, root: Path, scratch: Path) -> subprocess.Popen[str]:
    """Start an upload of an archive whose parts get no answer; return once the first is on its way."""
    line.rule = lambda seen: Stall(60) if "partNumber" in seen.path else None
    scratch.mkdir()
    where = (f"s3://{bucket.name}/code", "--endpoint-url", line.endpoint, "--archive")
    process = jobsubmit.start("upload", root, *where, env={**os.environ, "TMPDIR": str(scratch)})
    wait_for_request(line, "partNumber")
    return process


def test_eight_clients_with_the_same_directory(jobsubmit: Command, bucket: Bucket, code: Path) -> None:
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    with reading(bucket, "code") as reader:
        crew = [jobsubmit.start("upload", code, *where, "-o", "json") for _ in range(8)]
        said = [process.communicate(timeout=PATIENCE) for process in crew]
    assert [process.returncode for process in crew] == [0] * 8, said
    assert sorted(json.loads(out)["files"] for out, _ in said) == [0] * 7 + [41]
    bucket.assert_whole("code", code)
    assert reader.lies == 0


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True], ids=["one machine", "as if on eight machines"])
def test_eight_clients_with_different_directories(
    jobsubmit: Command, bucket: Bucket, tmp_path: Path, *, apart: bool
) -> None:
    roots = [make(tmp_path / f"code{number}", 20, salt=str(number)) for number in range(8)]
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint, "--delete")
    with reading(bucket, "code") as reader:
        crew = []
        for number, root in enumerate(roots):
            state = {"JOBSUBMIT_STATE_DIR": str(tmp_path / f"state{number}")} if apart else {}
            crew.append(jobsubmit.start("upload", root, *where, env={**os.environ, **state}))
        said = [process.communicate(timeout=PATIENCE)[1] for process in crew]
    codes = [process.returncode for process in crew]
    assert codes == [0] * 8, said
    assert reader.lies == 0
    manifest = bucket.manifest("code")
    assert manifest is not None
    last = next(root for root in roots if scan(root).digest == manifest["digest"])
    bucket.assert_whole("code", last)


class Notes(Progress):
    """Keep what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def put_claim(bucket: Bucket, **fields: Any) -> None:
    claim = {"owner": "x" * 32, "host": "elsewhere", "pid": 1, "beat": 0, "is_over": False, **fields}
    document = {"format": 1, "claim": claim, "files": []}
    bucket.client.put_object(Bucket=bucket.name, Key="code.manifest.json", Body=json.dumps(document).encode())


@pytest.mark.slow
def test_an_upload_of_another_machine_is_waited_for_while_it_lives(
    bucket: Bucket, line: Proxy, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobsubmit: Command
) -> None:
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 3)
    where = (f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    put_claim(bucket)
    assert "the upload is incomplete" in jobsubmit("download", where[0], "out", *where[1:], code=4).stderr
    beats = []

    def live() -> None:
        for beat in range(1, 6):
            time.sleep(1)
            beats.append(time.monotonic())
            put_claim(bucket, beat=beat)

    living = threading.Thread(target=live)
    living.start()
    notes = Notes()
    assert send(code, bucket, line, tmp_path, progress=notes).files == 41
    living.join()
    assert len(beats) == 5
    assert 2 < time.monotonic() - beats[-1] < 6
    assert "process 1 on elsewhere is uploading" in notes.said[0]
    bucket.assert_whole("code", code)


@pytest.mark.parametrize("fields", [{"is_over": True}, {"pid": "odd"}, {"owner": None}])
def test_what_a_dead_upload_of_another_machine_left_is_nobodys(
    fields: dict[str, Any], bucket: Bucket, line: Proxy, code: Path, tmp_path: Path
) -> None:
    put_claim(bucket, **fields)
    notes = Notes()
    send(code, bucket, line, tmp_path, progress=notes)
    assert notes.said == []
    bucket.assert_whole("code", code)


def test_an_upload_that_was_overtaken_says_so(
    bucket: Bucket, line: Proxy, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1)

    def rule(seen: Seen) -> Fault | None:
        if seen.method == "PUT" and "/p0/" in seen.path and not overtaken:
            overtaken.append(seen.path)
            put_claim(bucket)
            return Stall(1.5)
        return None

    overtaken: list[str] = []
    line.rule = rule
    with pytest.raises(StoreError, match="another upload took over"):
        send(code, bucket, line, tmp_path)
    data = bucket.objects("code.manifest.json")["code.manifest.json"]
    assert json.loads(data)["claim"]["host"] == "elsewhere"
    assert [seen.path for seen in line.seen].count(overtaken[0]) == 1  # it was not tried again


def test_a_failed_upload_keeps_nobody_waiting(bucket: Bucket, line: Proxy, code: Path, tmp_path: Path) -> None:
    line.rule = lambda seen: Answer("403 Forbidden", "AccessDenied") if "/p3/" in seen.path else None
    with pytest.raises(StoreError):
        send(code, bucket, line, tmp_path)
    line.rule = lambda _: None
    notes = Notes()
    store = S3Store(StoreAddress(f"s3://{bucket.name}", endpoint_url=line.endpoint), QUICK)
    upload(store, scan(code), place_ref(f"s3://{bucket.name}/code", "code"), tmp_path / "as elsewhere", progress=notes)
    assert notes.said == []
    bucket.assert_whole("code", code)


# ── large objects ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    (root / "weights.bin").write_bytes(random.Random(3).randbytes(70 << 20))
    return root


def unfinished(bucket: Bucket) -> list[str]:
    uploads = bucket.client.list_multipart_uploads(Bucket=bucket.name, Prefix="code/weights.bin").get("Uploads", [])
    return [upload_["UploadId"] for upload_ in uploads]


@pytest.mark.slow
def test_a_large_file_goes_in_parts_and_a_dead_try_leaves_none(
    jobsubmit: Command, bucket: Bucket, line: Proxy, large: Path, tmp_path: Path
) -> None:
    where = (f"s3://{bucket.name}/code", "--endpoint-url", line.endpoint)
    line.rule = lambda seen: Stall(5) if "partNumber=3" in seen.path else None
    process = jobsubmit.start("upload", large, *where)
    wait_for_request(line, "partNumber=3")
    process.kill()
    process.communicate()
    assert unfinished(bucket)
    assert bucket.tree("code") == {}
    line.rule = every(3, Reset(after=1000))
    jobsubmit("upload", large, *where)
    assert unfinished(bucket) == []
    bucket.assert_whole("code", large)
    line.rule = every(2, Truncate())
    jobsubmit("download", where[0], tmp_path / "out", *where[1:])
    assert contents(tmp_path / "out") == contents(large)


def test_a_large_file_that_changes_leaves_no_part(bucket: Bucket, line: Proxy, large: Path, tmp_path: Path) -> None:
    def rule(seen: Seen) -> None:
        if "partNumber=1" in seen.path:
            with (large / "weights.bin").open("r+b") as stream:
                stream.seek(69 << 20)
                stream.write(b"changed")

    line.rule = rule
    with pytest.raises(BundleError, match="changed while it was read"):
        send(large, bucket, line, tmp_path)
    assert unfinished(bucket) == []
    assert bucket.tree("code") == {}
    assert bucket.manifest("code") is None


@pytest.mark.slow
def test_memory_does_not_grow_with_a_large_file(jobsubmit: Command, bucket: Bucket, large: Path) -> None:
    (large / "weights.bin").write_bytes((large / "weights.bin").read_bytes() * 5)
    process = jobsubmit.start("upload", large, f"s3://{bucket.name}/code", "--endpoint-url", bucket.server.endpoint)
    peak = 0
    while process.poll() is None:
        told = Path(f"/proc/{process.pid}/status").read_text()
        peak = max([peak, *(int(text.split()[1]) for text in told.splitlines() if text.startswith("VmHWM"))])
        time.sleep(0.02)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert 0 < peak < 250 << 10
