"""A bucket as an object store: S3, OBS and MinIO. The bytes go through obstore, the rest through boto3."""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, NotModifiedError, PreconditionError
from obstore.store import S3Store as Client

from jobsubmit.address import StoreAddress
from jobsubmit.bundle import changed
from jobsubmit.errors import BundleError, StoreError
from jobsubmit.stores import ObjectInfo, Progress, Source, Stored, nothing
from jobsubmit.stores.credentials import find_access

if TYPE_CHECKING:
    from jobsubmit.stores.s3_control import S3Control

T = TypeVar("T")

LARGE = 64 << 20  # from here on an object goes in parts
_LONGEST_KEY = 1024  # bytes, prefix included (S3's and OBS's documentation)
_SMALL = 1 << 20

HINTS = {
    "NoSuchBucket": "create the bucket first, or correct store.uri",
    "AccessDenied": "the key may not do this here: check the bucket's policy and store.profile",
    "403": "the key may not do this here, or the bucket is somebody else's: check store.uri and store.profile",
    "InvalidAccessKeyId": "the server does not know this key: check the credentials and store.endpoint_url",
    "SignatureDoesNotMatch": "the secret key, store.region or store.endpoint_url is wrong",
    "ExpiredToken": "the session token has expired: get a new one",
    "InvalidTokenId": "the session token is not the server's: get a new one",
    "RequestTimeTooSkewed": "the clock of this machine is more than 15 minutes off: set it",
    "PermanentRedirect": "the bucket lies in another region: set store.region",
    "AuthorizationHeaderMalformed": "the bucket lies in another region: set store.region",
    "XMinioStorageFull": "the server's disk is full: make room there, then run again",
    "SlowDown": "the server is overloaded: run again later",
}
CREDENTIALS_HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or store.profile"
_UNEXPECTED_HINT = "see the server's message; `--debug` shows where it happened"


class Limits(NamedTuple):
    """Bound the waiting, in seconds: for a connection, a small request, a large one, and all tries of one together.

    Before the server has ever answered nobody waits longer than `first`.
    """

    connect: float = 10
    small: float = 30
    large: float = 600
    first: float = 5
    total: float = 120


class S3Store:
    """Keep objects in a bucket; the server proves each upload by the signed digest of its bytes, or by its ETag."""

    def __init__(self, address: StoreAddress, limits: Limits = Limits()) -> None:  # noqa: B008 - it is frozen
        self.address = address
        self.uri = address.uri.rstrip("/")
        self.scheme, _, rest = self.uri.partition("://")
        self.bucket, _, folder = rest.partition("/")
        self.prefix = f"{folder}/" if folder else ""
        self.limits = limits
        self.requests = 0
        self._counting = threading.Lock()
        self._answered = False
        if self.scheme == "obs" and not address.endpoint_url:
            raise StoreError(
                f"{self.uri}: obs:// needs store.endpoint_url",
                "e.g. endpoint_url: https://obs.REGION.myhuaweicloud.com",
                where="store.endpoint_url",
            )
        # OBS documents no conditional PUT, and of the payload modes that we could use only the unsigned one.
        self._conditional = self.scheme != "obs"
        self._unsigned = self.scheme == "obs"

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def control(self) -> S3Control:
        """Return the slower half, for what obstore does not do."""
        from jobsubmit.stores.s3_control import S3Control

        return S3Control(self.address, self.access, self.is_virtual, self._count)

    @cached_property
    def access(self) -> Any:
        """Return endpoint, region and keys."""
        return find_access(self.address)

    @property
    def is_virtual(self) -> bool:
        """Tell whether the bucket's name is part of the host's: OBS refuses anything else, a bare address cannot."""
        if self.address.addressing in ("virtual", "path"):
            return self.address.addressing == "virtual"
        if self.scheme == "obs":
            return True
        host = (self.access.endpoint_url or "").partition("://")[2].partition("/")[0]
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return not (name == "localhost" or name.replace(".", "").isdigit() or "[" in name)

    @cached_property
    def _first_client(self) -> Client:
        return self._connected(self.limits.small, self.limits.first)

    @cached_property
    def _small_client(self) -> Client:
        return self._connected(self.limits.small, self.limits.total)

    @cached_property
    def _large_client(self) -> Client:
        return self._connected(self.limits.large, self.limits.total)

    def _client(self, size: int = 0) -> Client:
        with self._counting:  # a client is made once, whichever thread comes first
            if size > _SMALL:
                return self._large_client
            return self._small_client if self._answered else self._first_client

    def _connected(self, request_seconds: float, total_seconds: float) -> Client:
        from datetime import timedelta

        endpoint = self.access.endpoint_url
        config: dict[str, Any] = {
            "region": self.access.region,
            "virtual_hosted_style_request": self.is_virtual,
            "unsigned_payload": self._unsigned,
            "disable_bulk_delete": True,
        }
        if endpoint:
            scheme, _, host = endpoint.rstrip("/").partition("://")
            config["endpoint"] = f"{scheme}://{self.bucket}.{host}" if self.is_virtual else f"{scheme}://{host}"
        if self.access.keys:
            config |= {"access_key_id": self.access.keys.access_key_id}
            config |= {"secret_access_key": self.access.keys.secret_access_key}
            config |= {"session_token": self.access.keys.token} if self.access.keys.token else {}
        return Client(
            self.bucket,
            config=config,  # type: ignore[arg-type] # its keys are those of S3Config
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=min(self.limits.connect, total_seconds)),
                "timeout": timedelta(seconds=request_seconds),
                "pool_idle_timeout": timedelta(seconds=20),
            },
            retry_config={
                "max_retries": 20,
                "retry_timeout": timedelta(seconds=total_seconds),
                "backoff": {
                    "init_backoff": timedelta(seconds=0.1),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
            credential_provider=None if self.access.keys else self.control.credential_provider(),
        )

    def _count(self) -> None:
        with self._counting:
            self.requests += 1

    # ── objects ─────────────────────────────────────────────────────────────────────────────────────────────────

    def check_key(self, key: str) -> None:
        """Refuse keys that are too long (see ObjectStore)."""
        length = len((self.prefix + key).encode())
        if length > _LONGEST_KEY:
            raise StoreError(
                f"{self.uri}/{key}: the key is {length} bytes long, a bucket takes {_LONGEST_KEY}",
                "shorten the path, or leave it out with .jobignore",
            )

    def put(
        self, key: str, source: Source, sha256: str, expected: str | None = None, progress: Progress = nothing
    ) -> str | None:
        """Store an object (see ObjectStore)."""
        if isinstance(source, Path) and _size(source) >= LARGE:
            if expected is not None and self._tag(key) != expected:
                return None
            return self.control.put_parts(self.prefix + key, source, sha256, progress)
        data = _read(source) if isinstance(source, Path) else source
        if hashlib.sha256(data).hexdigest() != sha256:
            raise changed(source if isinstance(source, Path) else key)
        tag = self._put_bytes(key, data, expected)
        progress(len(data))
        return tag

    def _put_bytes(self, key: str, data: bytes, expected: str | None) -> str | None:
        if not _is_plain(key):
            return None if expected not in (None, self._tag(key)) else self.control.put(self.prefix + key, data)
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest() if expected is not None or self._unsigned else ""
        if expected is not None and self._conditional:
            return self._put_if(key, data, expected, md5)
        if expected is not None and self._tag(key) != expected:
            return None
        with self._errors(key):
            self._count()
            answer = obstore.put(self._client(len(data)), self.prefix + key, data, use_multipart=False)
        tag = self._answer(answer["e_tag"])
        if self._unsigned and re.fullmatch("[0-9a-f]{32}", tag) and tag != md5:
            raise StoreError(f"{self.uri}/{key}: what the server has stored is not what was sent", "run again")
        return tag

    def _put_if(self, key: str, data: bytes, expected: str, md5: str) -> str | None:
        mode: Any = {"e_tag": f'"{expected}"'} if expected else "create"

        def act() -> str | None:
            self._count()
            try:
                answer = obstore.put(self._client(len(data)), self.prefix + key, data, use_multipart=False, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                # It may be our own: a try whose answer was lost.
                return md5 if self._tag(key) == md5 else None
            except FileNotFoundError as error:
                if code_of(error) == "NoSuchKey":  # it should have replaced something that is gone
                    return None
                raise
            return self._answer(answer["e_tag"])

        return self._trying(key, act)

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        if not _is_plain(key):
            return self.control.get(self.prefix + key)
        return self._trying(key, lambda: bytes(self._got(key).bytes()))

    def get_to(self, key: str, file: Path) -> str:
        """Write an object to a file (see ObjectStore)."""

        def act() -> str:
            digest = hashlib.sha256()
            with file.open("wb") as sink:
                for block in [self.get(key)] if not _is_plain(key) else self._got(key, LARGE).stream():
                    digest.update(block)
                    sink.write(block)
            return digest.hexdigest()

        return self._trying(key, act)

    def get_unless(self, key: str, tag: str) -> Stored | None:
        """Return an object unless its tag is known (see ObjectStore)."""
        if not _is_plain(key):
            info = self.head(key)
            return Stored(self.get(key), info.tag) if info else None

        def act() -> Stored | None:
            try:
                answer = self._got(key, options={"if_none_match": f'"{tag}"'})
                return Stored(bytes(answer.bytes()), self._answer(answer.meta["e_tag"]))
            except NotModifiedError:
                return Stored(None, self._answer(tag))
            except FileNotFoundError as error:
                if code_of(error) in ("NoSuchKey", ""):
                    self._answered = True
                    return None
                raise

        return self._trying(key, act)

    def _got(self, key: str, size: int = 0, **options: Any) -> Any:
        self._count()
        return obstore.get(self._client(size), self.prefix + key, **options)

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object (see ObjectStore)."""
        if not _is_plain(key):
            return self.control.head(self.prefix + key, self.prefix)

        def act() -> ObjectInfo | None:
            self._count()
            try:
                answer = obstore.head(self._client(), self.prefix + key)
            except FileNotFoundError:
                return None
            return ObjectInfo(key, answer["size"], self._answer(answer["e_tag"]))

        return self._trying(key, act)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix (see ObjectStore)."""
        return self.control.listed(self.prefix + prefix, self.prefix)

    def copy(self, source_key: str, key: str, source: Path) -> bool:
        """Let the server copy an object (see ObjectStore); the copy's ETag proves it."""
        if _size(source) >= LARGE or not (_is_plain(source_key) and _is_plain(key)):
            return False
        with self._errors(key):
            self._count()
            try:
                obstore.copy(self._client(LARGE), self.prefix + source_key, self.prefix + key)
            except FileNotFoundError:
                return False
        return self._tag(key) == hashlib.md5(_read(source), usedforsecurity=False).hexdigest()

    def delete(self, key: str) -> None:
        """Remove an object (see ObjectStore)."""
        if not _is_plain(key):
            self.control.delete(self.prefix + key)
            return
        with self._errors(key):
            self._count()
            try:
                obstore.delete(self._client(), self.prefix + key)
            except FileNotFoundError as error:
                if code_of(error) == "NoSuchBucket":
                    raise

    def url(self, key: str, expires: int) -> str:
        """Return a presigned address (see ObjectStore)."""
        from datetime import timedelta

        if not _is_plain(key):
            return self.control.url(self.prefix + key, expires)
        with self._errors(key):
            return obstore.sign(self._client(), "GET", self.prefix + key, timedelta(seconds=expires))

    def _tag(self, key: str) -> str:
        info = self.head(key)
        return info.tag if info else ""

    def _answer(self, tag: str | None) -> str:
        """Note that the server has answered; return its ETag without the quotes."""
        self._answered = True
        return (tag or "").strip('"')

    # ── failures ────────────────────────────────────────────────────────────────────────────────────────────────

    def _trying(self, key: str, act: Callable[[], T]) -> T:
        """Do what obstore does not repeat by itself: a broken body, a conditional request whose answer was lost."""
        deadline = time.monotonic() + self.limits.total
        pause = 0.1
        with self._errors(key):
            while True:
                try:
                    return act()
                except GenericError as error:
                    if "HTTP error" not in str(error) or time.monotonic() > deadline or not self._answered:
                        raise
                    time.sleep(pause * random.uniform(0.5, 1))
                    pause = min(2 * pause, 5)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and error.filename is not None:
                raise
            raise self._store_error(f"{self.uri}/{key}", error) from error

    def _store_error(self, address: str, error: Exception) -> StoreError:
        text = str(error)
        if code := code_of(error):
            message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
            said = f"{code} {message[1] if message else ''}".strip()
            return StoreError(f"{address}: {said}", HINTS.get(code, _UNEXPECTED_HINT), self.uri)
        if status := re.search(r"status code: (\d+) ([^:\n]*)", text):
            return StoreError(f"{address}: {status[1]} {status[2]}", HINTS.get(status[1], _UNEXPECTED_HINT), self.uri)
        if "HTTP error" in text:
            endpoint = self.access.endpoint_url or "AWS"
            hint = f"check that {endpoint} is reachable, and store.endpoint_url"
            return StoreError(f"{address}: {_transport_problem(text)}", hint, self.uri)
        return StoreError(f"{address}: {text.partition(chr(10))[0]}", _UNEXPECTED_HINT, self.uri)


def code_of(error: Exception) -> str:
    """Return the server's word for what is wrong, or nothing where it sent none."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found[1] if found else ""


def _transport_problem(text: str) -> str:
    if "TimedOut" in text:
        return "no answer in time"
    found = re.search(r'(?:message|error): "([^"]+)"', text)
    return found[1] if found else "the connection broke"


def _is_plain(key: str) -> bool:
    """Tell whether obstore can spell a key: it refuses control characters, `.`, `..` and empty parts."""
    return key.isprintable() or not any(letter < " " or letter == "\x7f" for letter in key)


def _size(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except OSError as error:
        raise BundleError(f"{file} changed or vanished while it was read: {error.strerror}", "run again") from error


def _read(file: Path) -> bytes:
    try:
        with open(file, "rb", buffering=0) as stream:
            return stream.read()
    except OSError as error:
        raise BundleError(f"{file} changed or vanished while it was read: {error.strerror}", "run again") from error
