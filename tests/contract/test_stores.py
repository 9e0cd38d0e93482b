"""One suite that every store passes; the S3 one runs against a real MinIO, path style and virtual-host style."""

from __future__ import annotations

import hashlib
import os
import random
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import moto_server
import pytest
from hostile import HOSTILE
from memory_store import MemoryStore
from minio_server import Server
from obs import Domain
from tiers import slow

from jobsubmit.common.store_address import Addressing, StoreAddress
from jobsubmit.errors import BundleError, StoreError, StoreRefusedError
from jobsubmit.stores.opening import open_store
from jobsubmit.stores.protocol import ObjectStore
from jobsubmit.stores.s3_retry import Limits
from jobsubmit.stores.s3_transport import Connection

HEX = hashlib.sha256(b"").hexdigest()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(
    params=["memory", "folder", pytest.param("s3", marks=pytest.mark.needs("minio")), slow("moto")],
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "folder":
        return open_store(StoreAddress(uri=str(tmp_path / "store")))
    if request.param == "moto":
        endpoint, bucket = request.getfixturevalue("moto")
        return open_store(StoreAddress(uri=f"s3://{bucket}/team/jobs", endpoint_url=endpoint))
    bucket, server = request.getfixturevalue("s3")
    return open_store(StoreAddress(uri=f"s3://{bucket}/team/jobs", endpoint_url=server.endpoint))


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Run a second kind of server."""
    if not moto_server.is_there():
        pytest.skip("needs moto: `make test-all` installs it")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.SECRET)
    with moto_server.running() as running:
        yield running


def test_what_is_put_can_be_had_again(store: ObjectStore, tmp_path: Path) -> None:
    store.put("a/b.txt", b"hello", sha(b"hello"))
    (tmp_path / "file").write_bytes(b"from a file")
    store.put("a/c.txt", tmp_path / "file", sha(b"from a file"))
    assert store.get("a/b.txt") == b"hello"
    assert store.get("a/c.txt") == b"from a file"
    info = store.head("a/b.txt")
    assert info is not None
    assert (info.key, info.size) == ("a/b.txt", 5)


def test_put_replaces(store: ObjectStore) -> None:
    store.put("k", b"one", sha(b"one"))
    store.put("k", b"two", sha(b"two"))
    assert store.get("k") == b"two"


def test_head_of_nothing_is_none_and_get_is_an_error(store: ObjectStore) -> None:
    assert store.head("nothing") is None
    with pytest.raises(StoreError, match="nothing"):
        store.get("nothing")


def test_a_source_that_is_not_what_it_was_is_refused_and_nothing_is_stored(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"changed")
    for source in (b"changed", tmp_path / "file"):
        with pytest.raises(BundleError, match="changed while it was read"):
            store.put("k", source, sha(b"as it was"))
    assert store.head("k") is None
    assert list(store.list("")) == []


@pytest.mark.parametrize("size", [0, 5, 66 << 20], ids=["empty", "small", "in parts"])
def test_what_is_made_while_it_is_sent(size: int, store: ObjectStore, tmp_path: Path) -> None:
    data = random.Random(size).randbytes(size)
    cuts = [0, min(3, size), *range(1_000_003, size, 3_000_017), size]
    store.put_stream("k", (data[start:end] for start, end in pairwise(cuts)), size)
    assert store.get_to("k", tmp_path / "back", size) == sha(data)
    assert (tmp_path / "back").read_bytes() == data
    store.put_stream("k", iter([b"another"]), 7)
    assert store.get("k") == b"another"


@pytest.mark.parametrize("size", [5, 66 << 20], ids=["small", "in parts"])
def test_what_breaks_off_while_it_is_made_changes_nothing(size: int, store: ObjectStore) -> None:
    def broken() -> Iterator[bytes]:
        for _ in range(0, size, 1 << 20):
            yield bytes(min(size, 1 << 20))
        raise BundleError("train.py changed while it was read")

    store.put("k", b"as it was", sha(b"as it was"))
    with pytest.raises(BundleError, match=r"train\.py"):
        store.put_stream("k", broken(), size)
    assert store.get("k") == b"as it was"
    assert [info.key for info in store.list("")] == ["k"]


def test_list_is_by_prefix_and_in_order(store: ObjectStore) -> None:
    for key in ("b", "a/2", "a/1", "a/10", "ab/1"):
        store.put(key, b"x", sha(b"x"))
    assert [info.key for info in store.list("a/")] == ["a/1", "a/10", "a/2"]
    assert [info.key for info in store.list("a")] == ["a/1", "a/10", "a/2", "ab/1"]
    assert [info.key for info in store.list("")] == ["a/1", "a/10", "a/2", "ab/1", "b"]
    assert list(store.list("zzz/")) == []


def test_put_only_where_nothing_else_is(store: ObjectStore) -> None:
    first = store.put("k", b"one", sha(b"one"), expected="")
    assert first is not None
    assert store.put("k", b"two", sha(b"two"), expected="") is None
    assert store.get("k") == b"one"
    assert store.put("k", b"two", sha(b"two"), expected="0" * 32) is None
    second = store.put("k", b"two", sha(b"two"), expected=first)
    assert second is not None
    assert store.get("k") == b"two"
    assert store.put("gone", b"x", sha(b"x"), expected=first) is None
    assert store.head("gone") is None


def test_of_many_that_want_to_be_the_first_one_is(store: ObjectStore) -> None:
    for key in ("one", "deep/er/two"):
        with ThreadPoolExecutor(16) as pool:
            data = [str(number).encode() for number in range(16)]
            tags = list(pool.map(lambda text: store.put(key, text, sha(text), expected=""), data))  # noqa: B023
        winners = [text for text, tag in zip(data, tags, strict=True) if tag is not None]
        assert winners == [store.get(key)]


def test_a_tag_that_is_known_spares_the_bytes(store: ObjectStore) -> None:
    assert store.get_unless("k", "") is None
    tag = store.put("k", b"one", sha(b"one"))
    assert tag is not None
    known, unknown = store.get_unless("k", tag), store.get_unless("k", "0" * 32)
    assert known is not None
    assert known.data in (None, b"one")
    assert unknown is not None
    assert unknown.data == b"one"


def test_more_objects_than_one_page_of_a_listing(store: ObjectStore) -> None:
    keys = [f"many/{number:05}" for number in range(1005)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b"", HEX), keys))
    assert [info.key for info in store.list("many/")] == keys


def test_delete_twice_is_fine(store: ObjectStore) -> None:
    store.put("a/b", b"x", sha(b"x"))
    store.delete("a/b")
    store.delete("a/b")
    assert store.head("a/b") is None


def test_anybody_may_get_its_url(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a b/#1?.txt", b"hello", sha(b"hello"))
    address = store.url("a b/#1?.txt", 60)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.read() == b"hello"


@pytest.mark.parametrize("name", [name[:200] for name in HOSTILE if name and not set(name) & set("\n\r\x01")])
def test_hostile_names(store: ObjectStore, name: str) -> None:
    store.put(f"h/{name}/file", name.encode(), sha(name.encode()))
    assert store.get(f"h/{name}/file") == name.encode()
    assert [info.key for info in store.list("h/")] == [f"h/{name}/file"]


def test_control_characters_are_kept_or_refused_but_never_changed(store: ObjectStore) -> None:
    for name in ("line\nbreak", "return\r", "bell\x07"):
        try:
            store.put(name, b"x", sha(b"x"))
            listed = [info.key for info in store.list(name[:3])]
        except StoreError as refused:
            assert "control characters" in str(refused) or isinstance(refused, StoreRefusedError)
            continue
        assert listed == [name]


@pytest.mark.needs("minio")
class TestS3:
    """What only a server can refuse: each refusal names the address and the next step."""

    def open(self, uri: str, server: Server) -> ObjectStore:
        return open_store(StoreAddress(uri=uri, endpoint_url=server.endpoint))

    def test_the_prefix_and_nothing_else_is_used(self, s3: tuple[str, Server]) -> None:
        bucket, server = s3
        self.open(f"s3://{bucket}/deep/er/", server).put("k", b"x", sha(b"x"))
        assert [info.key for info in self.open(f"s3://{bucket}", server).list("")] == ["deep/er/k"]

    def test_obs_means_the_configured_endpoint(self, s3: tuple[str, Server]) -> None:
        bucket, server = s3
        spec = StoreAddress(uri=f"obs://{bucket}/x", endpoint_url=server.endpoint, addressing="path")
        open_store(spec).put("k", b"x", sha(b"x"))
        assert open_store(spec).get("k") == b"x"
        with pytest.raises(StoreError, match="obs:// needs"):
            open_store(StoreAddress(uri=f"obs://{bucket}/x"))

    def refusal(self, act: Callable[[], object]) -> StoreError:
        with pytest.raises(StoreError) as caught:
            act()
        assert caught.value.hint
        return caught.value

    def test_missing_bucket(self, s3: tuple[str, Server]) -> None:
        error = self.refusal(lambda: self.open("s3://no-such-bucket-here", s3[1]).put("k", b"", HEX))
        assert "NoSuchBucket" in error.message
        assert "create the bucket" in error.hint

    def test_no_credentials(self, s3: tuple[str, Server], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        error = self.refusal(lambda: self.open(f"s3://{s3[0]}", s3[1]).put("k", b"", HEX))
        assert "no credentials" in error.message

    def test_wrong_key_and_wrong_secret(self, s3: tuple[str, Server], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
        error = self.refusal(lambda: self.open(f"s3://{s3[0]}", s3[1]).put("k", b"", HEX))
        assert "SignatureDoesNotMatch" in error.message
        assert "wrong-secret" not in error.message + error.hint
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        error = self.refusal(lambda: self.open(f"s3://{s3[0]}", s3[1]).put("k", b"", HEX))
        assert "does not know this access key" in error.hint

    def test_nobody_listens(self, s3: tuple[str, Server]) -> None:
        dead = StoreAddress(uri=f"s3://{s3[0]}", endpoint_url="http://127.0.0.1:9")
        assert "reachable" in self.refusal(lambda: open_store(dead).put("k", b"", HEX)).hint

    def test_an_endpoint_that_no_bucket_can_be_part_of(self, s3: tuple[str, Server]) -> None:
        spec = StoreAddress(uri=f"obs://{s3[0]}", endpoint_url=s3[1].endpoint)
        assert "store.addressing: path" in self.refusal(lambda: open_store(spec).get("k")).hint

    def test_unknown_profile(self, s3: tuple[str, Server]) -> None:
        spec = StoreAddress(uri=f"s3://{s3[0]}", endpoint_url=s3[1].endpoint, profile="nobody")
        assert "profile" in self.refusal(lambda: open_store(spec).head("k")).hint


# ── OBS ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.needs("minio")
def test_virtual_host_addressing(domain: Domain) -> None:
    store = open_store(StoreAddress(uri="s3://virtual/p", endpoint_url=domain.endpoint, addressing="virtual"))
    assert store.url("k", 60).startswith(domain.endpoint.replace("localhost", "virtual.localhost"))
    store.put("k", b"x", sha(b"x"))
    assert [info.key for info in store.list("")] == ["k"]


@pytest.mark.needs("minio")
def test_what_obs_does_not_know_is_not_sent(domain: Domain, tmp_path: Path) -> None:
    """OBS knows virtual hosts, unsigned payloads, the first list; no conditional PUT, no trailers, no bulk delete."""
    large = tmp_path / "large"
    large.write_bytes(os.urandom(65 << 20))
    store = open_store(StoreAddress(uri="obs://virtual/p", endpoint_url=domain.endpoint))
    tag = store.put("claim", b"one", sha(b"one"), expected="")
    assert tag is not None
    assert store.put("claim", b"two", sha(b"two"), expected="") is None
    assert store.put("claim", b"two", sha(b"two"), expected=tag) is not None
    store.put("odd\x07name", b"x", sha(b"x"))
    store.put("large", large, sha(large.read_bytes()))
    (tmp_path / "small").write_bytes(b"two")
    assert store.copy("claim", "copy", tmp_path / "small")
    assert [info.key for info in store.list("")] == ["claim", "copy", "large", "odd\x07name"]
    for key in ("claim", "copy", "large", "odd\x07name"):
        store.delete(key)
    assert list(store.list("")) == []
    host = domain.endpoint.partition("://")[2]
    for seen in domain.line.seen:
        assert seen.headers["host"] == f"virtual.{host}"
        assert "if-match" not in seen.headers
        assert not (seen.method == "PUT" and "if-none-match" in seen.headers)
        assert not any(name.startswith(("x-amz-checksum", "x-amz-sdk", "x-amz-trailer")) for name in seen.headers)
        assert "STREAMING" not in seen.headers["x-amz-content-sha256"]
        assert "list-type" not in seen.path
        assert not (seen.method == "POST" and "delete" in seen.path.partition("?")[2])
    plain = [seen for seen in domain.line.seen if seen.path.partition("?")[0].endswith(("/claim", "/copy"))]
    assert {seen.headers["x-amz-content-sha256"] for seen in plain} == {"UNSIGNED-PAYLOAD"}


@pytest.mark.parametrize(
    ("uri", "endpoint", "is_virtual"),
    [
        ("s3://b", None, True),
        ("s3://b", "https://s3.eu-west-1.amazonaws.com", True),
        ("s3://b", "https://oss-cn-hangzhou.aliyuncs.com", True),
        ("s3://b", "http://127.0.0.1:9000", False),
        ("s3://b", "http://10.0.0.7", False),
        ("s3://b", "http://[::1]:9000", False),
        ("s3://b", "http://localhost:9000", False),
        ("s3://b", "http://minio:9000", False),
        ("s3://b", "http://minio", False),
        ("s3://b", "https://minio.example.com:9000", False),
        ("obs://b", "https://obs.cn-north-4.myhuaweicloud.com", True),
        ("obs://b", "http://127.0.0.1:9000", True),
    ],
)
def test_how_a_bucket_is_addressed_unless_it_is_said(
    uri: str, endpoint: str | None, monkeypatch: pytest.MonkeyPatch, *, is_virtual: bool
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert Connection(StoreAddress(uri, endpoint), Limits()).is_virtual is is_virtual
    ways: tuple[Addressing, ...] = ("path", "virtual")
    for addressing in ways:
        address = StoreAddress(uri, endpoint, addressing=addressing)
        assert Connection(address, Limits()).is_virtual is (addressing == "virtual")
