"""A bucket as an object store: S3, OBS and MinIO. The bytes go through obstore, the rest through boto3."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError, NotModifiedError, PreconditionError

from jobsubmit.address import StoreAddress
from jobsubmit.bundle import changed
from jobsubmit.errors import BundleError, StoreError
from jobsubmit.stores import ObjectInfo, Progress, Source, Stored, nothing
from jobsubmit.stores.s3_connection import SMALL, Connection, Limits, code_of

if TYPE_CHECKING:
    from jobsubmit.stores.s3_control import S3Control

LARGE = 64 << 20  # from here on an object goes in parts
_LONGEST_KEY = 1024  # bytes, prefix included (S3's and OBS's documentation)


class S3Store:
    """Keep objects in a bucket; the server proves each upload by the signed digest of its bytes, or by its ETag."""

    def __init__(self, address: StoreAddress, limits: Limits = Limits()) -> None:  # noqa: B008 - it is frozen
        self.line = Connection(address, limits)
        self.uri, self.prefix = self.line.uri, self.line.prefix
        self._conditional = not self.line.is_obs
        self._is_slow = False

    @property
    def requests(self) -> int:
        """Return how many requests were made (see ObjectStore)."""
        return self.line.requests

    @property
    def _control(self) -> S3Control:
        return self.line.control

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
            return self._control.put_parts(self.prefix + key, source, sha256, progress)
        data = _read(source) if isinstance(source, Path) else source
        if hashlib.sha256(data).hexdigest() != sha256:
            raise changed(source if isinstance(source, Path) else key)
        tag = self._put_bytes(key, data, expected)
        progress(len(data))
        return tag

    def _put_bytes(self, key: str, data: bytes, expected: str | None) -> str | None:
        if not _is_plain(key):
            return None if expected not in (None, self._tag(key)) else self._control.put(self.prefix + key, data)
        md5 = _md5(data) if expected is not None or self.line.is_obs else ""
        if expected is not None and self._conditional:
            return self._put_if(key, data, expected, md5)
        if expected is not None and self._tag(key) != expected:
            return None

        def act() -> str:
            if len(data) > SMALL and self._is_slow:
                return self._control.put(self.prefix + key, data)
            self.line.count()
            try:
                answer = obstore.put(self.line.client(len(data)), self.prefix + key, data, use_multipart=False)
            except GenericError as error:
                if len(data) <= SMALL or "HTTP error" not in str(error):
                    raise
                # boto3 asks before it sends a body, so that a refusal is heard, and waits as long as bytes move.
                self._is_slow = True
                return self._control.put(self.prefix + key, data)
            return self.line.answer(answer["e_tag"])

        tag = self.line.trying(key, act)
        if self.line.is_obs and re.fullmatch("[0-9a-f]{32}", tag) and tag != md5:
            raise StoreError(f"{self.uri}/{key}: what the server has stored is not what was sent", "run again")
        return tag

    def _put_if(self, key: str, data: bytes, expected: str, md5: str) -> str | None:
        mode: Any = {"e_tag": f'"{expected}"'} if expected else "create"

        def act() -> str | None:
            self.line.count()
            try:
                answer = obstore.put(
                    self.line.client(len(data)), self.prefix + key, data, use_multipart=False, mode=mode
                )
            except (AlreadyExistsError, PreconditionError):
                # It may be our own: a try whose answer was lost.
                return md5 if self._tag(key) == md5 else None
            except FileNotFoundError as error:
                if code_of(error) == "NoSuchKey":  # it should have replaced something that is gone
                    return None
                raise
            return self.line.answer(answer["e_tag"])

        return self.line.trying(key, act)

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        if not _is_plain(key):
            return self._control.get(self.prefix + key)
        return self.line.trying(key, lambda: bytes(self._got(key).bytes()))

    def get_to(self, key: str, file: Path) -> str:
        """Write an object to a file (see ObjectStore)."""

        def act() -> str:
            digest = hashlib.sha256()
            with file.open("wb") as sink:
                for block in [self.get(key)] if not _is_plain(key) else self._got(key, LARGE).stream():
                    digest.update(block)
                    sink.write(block)
            return digest.hexdigest()

        return self.line.trying(key, act)

    def get_unless(self, key: str, tag: str) -> Stored | None:
        """Return an object unless its tag is known (see ObjectStore)."""
        if not _is_plain(key):
            info = self.head(key)
            return Stored(self.get(key), info.tag) if info else None

        def act() -> Stored | None:
            try:
                answer = self._got(key, options={"if_none_match": f'"{tag}"'})
                return Stored(bytes(answer.bytes()), self.line.answer(answer.meta["e_tag"]))
            except NotModifiedError:
                return Stored(None, self.line.answer(tag))
            except FileNotFoundError as error:
                if code_of(error) in ("NoSuchKey", ""):
                    self.line.answer("")
                    return None
                raise

        return self.line.trying(key, act)

    def _got(self, key: str, size: int = 0, **options: Any) -> Any:
        self.line.count()
        return obstore.get(self.line.client(size), self.prefix + key, **options)

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object (see ObjectStore)."""
        if not _is_plain(key):
            return self._control.head(self.prefix + key, self.prefix)

        def act() -> ObjectInfo | None:
            self.line.count()
            try:
                answer = obstore.head(self.line.client(), self.prefix + key)
            except FileNotFoundError:
                return None
            return ObjectInfo(key, answer["size"], self.line.answer(answer["e_tag"]))

        return self.line.trying(key, act)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix (see ObjectStore)."""
        return self._control.listed(self.prefix + prefix, self.prefix)

    def copy(self, source_key: str, key: str, source: Path) -> bool:
        """Let the server copy an object (see ObjectStore); the copy's ETag proves it."""
        if _size(source) >= LARGE or not (_is_plain(source_key) and _is_plain(key)):
            return False

        def act() -> bool:
            self.line.count()
            try:
                obstore.copy(self.line.client(LARGE), self.prefix + source_key, self.prefix + key)
            except FileNotFoundError:
                return False
            return True

        return (
            self.line.trying(key, act)
            and self._tag(key) == hashlib.md5(_read(source), usedforsecurity=False).hexdigest()
        )

    def delete(self, key: str) -> None:
        """Remove an object (see ObjectStore)."""
        if not _is_plain(key):
            self._control.delete(self.prefix + key)
            return

        def act() -> None:
            self.line.count()
            try:
                obstore.delete(self.line.client(), self.prefix + key)
            except FileNotFoundError as error:
                if code_of(error) == "NoSuchBucket":
                    raise

        self.line.trying(key, act)

    def url(self, key: str, expires: int) -> str:
        """Return a presigned address (see ObjectStore)."""
        from datetime import timedelta

        if not _is_plain(key):
            return self._control.url(self.prefix + key, expires)
        with self.line.errors(key):
            return obstore.sign(self.line.client(), "GET", self.prefix + key, timedelta(seconds=expires))

    def _tag(self, key: str) -> str:
        info = self.head(key)
        return info.tag if info else ""


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


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
