"""A bucket as an object store: S3, OBS and MinIO. The bytes go through obstore, the rest through boto3."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, NotModifiedError, PreconditionError

from jobsubmit.agent.fetch import LARGEST_MANIFEST
from jobsubmit.common.file_reading import changed_error, read_whole, size_of
from jobsubmit.common.store_address import StoreAddress
from jobsubmit.errors import StoreError
from jobsubmit.stores.authorities import private_certificates
from jobsubmit.stores.protocol import FREELY, ObjectInfo, Source, Stored, Watch, blocks, md5_of, part_tag_of, too_large
from jobsubmit.stores.s3_retry import PASSING_CODES, Limits, code_of, is_timeout, is_transport, is_unknown
from jobsubmit.stores.s3_transport import Connection

if TYPE_CHECKING:
    from jobsubmit.stores.s3_boto import S3Control

LARGE = 64 << 20  # from here on an object goes in parts
_LONGEST_KEY = 1024  # bytes, prefix included (S3's and OBS's documentation)
_SMALL = 64 << 10  # a body that a socket takes at once
_SLOW_AT_ONCE = 4
_COMPARED = 16 << 20
_STREAMED = 4 << 20
_TURN_SECONDS = 0.5


BRIEF = Limits(connect=2, answer=3, first=2, total=4)


class S3Store:
    """A store in a bucket; each upload is verified by the signed digest of its bytes, or by its ETag."""

    is_near = False

    def __init__(self, address: StoreAddress, limits: Limits = Limits()) -> None:  # noqa: B008 - it is frozen
        self.connection = Connection(address, limits)
        self.uri, self.prefix = self.connection.uri, self.connection.prefix
        self._conditional = not self.connection.is_obs
        self._is_md5_sent, self._is_slow = False, False
        self._slow_turns = threading.BoundedSemaphore(_SLOW_AT_ONCE)

    @property
    def requests(self) -> int:
        """Return how many requests were made (see ObjectStore)."""
        return self.connection.requests

    @property
    def round_trip(self) -> float:
        """Return how fast the server answers (see ObjectStore)."""
        return self.connection.round_trip

    @cached_property
    def certificates(self) -> str:
        """Return the private authorities of the server (see ObjectStore)."""
        bundle, server = self.connection.ca_bundle, self.connection.access.endpoint_url
        return private_certificates(bundle, server or "https://s3.amazonaws.com") if bundle else ""

    @cached_property
    def _control(self) -> S3Control:
        from jobsubmit.stores.s3_boto import S3Control

        return S3Control(self.connection)

    def check_key(self, key: str) -> None:
        """Refuse keys that are too long (see ObjectStore)."""
        length = len((self.prefix + key).encode())
        if length > _LONGEST_KEY:
            raise StoreError(
                f"{self.uri}/{key}: the key is {length} bytes long, the limit of a bucket is {_LONGEST_KEY}",
                "shorten the path, or leave it out with .jobignore",
            )

    def put(
        self, key: str, source: Source, sha256: str, expected: str | None = None, watch: Watch = FREELY
    ) -> str | None:
        """Store an object (see ObjectStore)."""
        if isinstance(source, Path) and size_of(source) >= LARGE:
            proven = partial(self._put_parts, key, _proven(source, sha256), size_of(source), watch)
            return self._looking(key, expected, proven)
        data = read_whole(source) if isinstance(source, Path) else source
        if hashlib.sha256(data).hexdigest() != sha256:
            raise changed_error(source if isinstance(source, Path) else key)
        if expected is not None and self._conditional and self._is_plain(key):
            tag = self._put_if(key, data, expected, watch)
        else:
            tag = self._looking(key, expected, lambda: self._put_bytes(key, data, watch))
        if tag is not None:
            watch.sent(len(data))
        return tag

    def put_stream(self, key: str, data: Iterator[bytes], most: int, watch: Watch = FREELY) -> None:
        """Store an object while it is made (see ObjectStore)."""
        first: list[bytes] = []
        size = 0
        for block in data:
            first.append(block)
            size += len(block)
            if size >= LARGE:
                self._put_parts(key, chain(first, data), most, watch)
                return
        self._put_bytes(key, b"".join(first), watch)
        watch.sent(size)

    def _put_parts(self, key: str, data: Iterator[bytes], most: int, watch: Watch) -> str:
        put = partial(self._control.put_parts, self.prefix + key, data, most, watch)
        return self.connection.retries.hear_interrupts(put)

    def _looking(self, key: str, expected: str | None, put: Callable[[], str]) -> str | None:
        """Put where a look before says that it may be done; it was, if a look after finds it."""
        if expected is None:
            return put()
        if self._tag(key) != expected:
            return None
        tag = put()
        return tag if self._tag(key) == tag else None

    def _put_bytes(self, key: str, data: bytes, watch: Watch) -> str:
        def act() -> str:
            if self._is_slow and len(data) > _SMALL:
                return self._put_patiently(key, data, watch)
            watch.before()
            self.connection.count()
            try:
                answer = obstore.put(self.connection.client, self.prefix + key, data, use_multipart=False)
            except GenericError as error:
                if len(data) <= _SMALL or not is_transport(error):
                    raise
                self._is_slow = self._is_slow or is_timeout(error)
                return self._put_patiently(key, data, watch)
            return self.connection.answer(answer["e_tag"])

        if self._is_md5_sent or not self._is_plain(key):
            return self._control.put(self.prefix + key, data, watch)
        tag = self.connection.trying(key, act)
        if self.connection.is_obs and tag != md5_of(data):
            # An unsigned payload is proven by its ETag. Where the bucket encrypts, that is something else.
            self._is_md5_sent = True
            return self._control.put(self.prefix + key, data, watch)
        return tag

    def _put_patiently(self, key: str, data: bytes, watch: Watch) -> str:
        """Let boto3 do it: it asks before it sends a body, so that a refusal is heard, and waits while bytes move."""
        while not self._slow_turns.acquire(timeout=_TURN_SECONDS):
            self.connection.retries.require_connection()
        try:
            return self._control.put(self.prefix + key, data, watch)
        finally:
            self._slow_turns.release()

    def _put_if(self, key: str, data: bytes, expected: str, watch: Watch) -> str | None:
        mode: Any = {"e_tag": f'"{expected}"'} if expected else "create"

        def act() -> str | None:
            watch.before()
            self.connection.count()
            try:
                answer = obstore.put(self.connection.client, self.prefix + key, data, use_multipart=False, mode=mode)
            except (AlreadyExistsError, PreconditionError) as error:
                if code_of(error) in PASSING_CODES:
                    raise
                return self._own(key, data)
            except FileNotFoundError as error:
                if code_of(error) == "NoSuchKey":  # it should have replaced something that is gone
                    return None
                raise
            except BaseError as error:
                if is_transport(error) and not self.connection.retries.has_answered:
                    self.get_unless(key, "")  # what refuses without reading a body says why only to who sends none
                if is_unknown(error):
                    self._conditional = False
                elif len(data) <= _SMALL or not is_transport(error):
                    raise
                return self._own(key, data) or self._looking(key, expected, lambda: self._put_bytes(key, data, watch))
            return self.connection.answer(answer["e_tag"])

        return self.connection.trying(key, act)

    def _own(self, key: str, data: bytes) -> str | None:
        """Return the tag of what is there if it is ours: the answer to an earlier try may have been lost."""
        info = self.head(key)
        if info is None or info.size != len(data):
            return None
        is_same = info.tag == md5_of(data) or (len(data) <= _COMPARED and self.get(key) == data)
        return info.tag if is_same else None

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        if not self._is_plain(key):
            return self._control.get(self.prefix + key)
        return self.connection.trying(key, lambda: self._whole(key, self._got(key)))

    def _whole(self, key: str, answer: Any) -> bytes:
        """Return an answer whole, unless it is larger than a manifest can be."""
        if answer.meta["size"] > LARGEST_MANIFEST:
            raise too_large(f"{self.uri}/{key}", LARGEST_MANIFEST)
        return bytes(answer.bytes())

    def get_to(self, key: str, file: Path, most: int) -> str:
        """Write an object to a file (see ObjectStore); after an interruption it resumes."""
        digest, done, tag, size = hashlib.sha256(), 0, "", -1

        def more() -> None:
            nonlocal done, tag, size
            options: Any = {"range": {"offset": done}, "if_match": f'"{tag}"'} if done else {}
            answer = self._got(key, options=options)
            tag, size = self.connection.answer(answer.meta["e_tag"]), answer.meta["size"]
            if size > most:
                raise too_large(f"{self.uri}/{key}", most)
            blocks = answer.stream() if size - done > _STREAMED else [answer.bytes()]
            for block in blocks:
                if done + len(block) > most:
                    raise too_large(f"{self.uri}/{key}", most)
                digest.update(block)
                sink.write(block)
                done += len(block)

        with file.open("wb") as sink:
            if not self._is_plain(key):
                data = self.get(key)
                if len(data) > most:
                    raise too_large(f"{self.uri}/{key}", most)
                digest.update(data)
                sink.write(data)
                return digest.hexdigest()
            while done != size:
                before = done
                try:
                    self.connection.trying(key, more)
                except StoreError:
                    if done == before:
                        raise
        return digest.hexdigest()

    def get_unless(self, key: str, tag: str) -> Stored | None:
        """Return an object unless its tag is known (see ObjectStore)."""
        if not self._is_plain(key):
            info = self.head(key)
            return Stored(self.get(key), info.tag) if info else None

        def act() -> Stored | None:
            try:
                answer = self._got(key, options={"if_none_match": f'"{tag}"'})
                return Stored(self._whole(key, answer), self.connection.answer(answer.meta["e_tag"]))
            except NotModifiedError:
                return Stored(None, self.connection.answer(tag))
            except FileNotFoundError as error:
                if code_of(error) in ("NoSuchKey", ""):
                    self.connection.answer("")
                    return None
                raise

        return self.connection.trying(key, act)

    def _got(self, key: str, **options: Any) -> Any:
        self.connection.count()
        return obstore.get(self.connection.client, self.prefix + key, **options)

    def head(self, key: str) -> ObjectInfo | None:
        """Return key, size and tag of an object (see ObjectStore)."""
        if not self._is_plain(key):
            return self._control.head(self.prefix + key, self.prefix)

        def act() -> ObjectInfo | None:
            self.connection.count()
            try:
                answer = obstore.head(self.connection.client, self.prefix + key)
            except FileNotFoundError:
                return None
            return ObjectInfo(key, answer["size"], self.connection.answer(answer["e_tag"]))

        return self.connection.trying(key, act)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix (see ObjectStore)."""
        return self._control.listed(self.prefix + prefix, self.prefix)

    def tag_of(self, source: Path) -> str:
        """Return the ETag that S3 defines (see ObjectStore)."""
        return part_tag_of(source) if size_of(source) >= LARGE else md5_of(source)

    def copy(self, source_key: str, key: str, source: Path) -> bool:
        """Let the server copy an object (see ObjectStore); the copy's ETag proves it."""
        if size_of(source) >= LARGE or not (self._is_plain(source_key) and self._is_plain(key)):
            return False
        self.connection.count()
        try:
            obstore.copy(self.connection.client, self.prefix + source_key, self.prefix + key)
        except (BaseError, FileNotFoundError):
            return False
        return self._tag(key) == md5_of(source)

    def delete(self, key: str) -> None:
        """Remove an object (see ObjectStore)."""
        if not self._is_plain(key):
            self._control.delete(self.prefix + key)
            return

        def act() -> None:
            self.connection.count()
            try:
                obstore.delete(self.connection.client, self.prefix + key)
            except FileNotFoundError as error:
                if code_of(error) == "NoSuchBucket":
                    raise

        self.connection.trying(key, act)

    def post_form(self, prefix: str, expires: int) -> dict[str, Any]:
        """Return {"url", "fields", "prefix"}: a form that anybody may post objects below a prefix with."""
        return self._control.post_form(self.prefix + prefix, expires)

    def url(self, key: str, expires: int) -> str:
        """Return a presigned address (see ObjectStore)."""
        from datetime import timedelta

        if not self._is_plain(key):
            return self._control.url(self.prefix + key, expires)
        with self.connection.errors(key):
            return obstore.sign(self.connection.client, "GET", self.prefix + key, timedelta(seconds=expires))

    def _tag(self, key: str) -> str:
        info = self.head(key)
        return info.tag if info else ""

    def _is_plain(self, key: str) -> bool:
        """Return whether obstore can spell a key: it refuses control characters, and parts that a path cannot have."""
        full = self.prefix + key
        if not {"", ".", ".."}.isdisjoint(full.split("/")):
            return False
        return full.isprintable() or not any(letter < " " or letter == "\x7f" for letter in full)


def _proven(source: Path, sha256: str) -> Iterator[bytes]:
    """Yield the bytes of a file; raise BundleError at their end where they have another digest."""
    digest = hashlib.sha256()
    for block in blocks(source):
        digest.update(block)
        yield block
    if digest.hexdigest() != sha256:
        raise changed_error(source)
