"""What obstore does not do for a bucket: credentials of every kind, listings, parts, unusual keys; all by boto3."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - it is botocore's
    HTTPClientError,
    IncompleteReadError,
    SSLError,
)

from jobsubmit.agent.retry import PASSING_STATUSES
from jobsubmit.errors import StoreError
from jobsubmit.stores.credential_errors import credential_error, is_of_credentials
from jobsubmit.stores.credentials import open_session
from jobsubmit.stores.protocol import FREELY, ObjectInfo, Watch, part_tag, parts
from jobsubmit.stores.s3_retry import PASSING_CODES
from jobsubmit.stores.s3_transport import Connection

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

T = TypeVar("T")

_PARTS_AT_ONCE = 3
_REPLACEMENT = "\ufffd"  # what some servers list instead of a character that XML cannot hold
_OF_CREDENTIALS = ("AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials", "CreateToken", "GetSessionToken")


class _Part(NamedTuple):
    """A part that is stored: the server's tag of it, and its md5."""

    tag: str
    md5: bytes


class S3Control:
    """The less frequent requests to a bucket; keys here include the store's prefix."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.bucket = connection, connection.bucket

    @cached_property
    def _client(self) -> S3Client:
        # OBS refuses path style and signed trailers (its documentation); MinIO on an address needs path style.
        config = Config(
            signature_version="s3v4",
            s3={
                "addressing_style": "virtual" if self.connection.is_virtual else "path",
                "payload_signing_enabled": False,
            },
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "max_attempts": 1},  # see s3_retry.py
            connect_timeout=self.connection.limits.connect,
            read_timeout=self.connection.limits.answer,
            max_pool_connections=64,
        )
        session = open_session(self.connection.address, self.connection.access.region)
        access, verify = self.connection.access, self.connection.ca_bundle or None
        client = session.client("s3", endpoint_url=access.endpoint_url, config=config, verify=verify)
        client.meta.events.register("before-send.s3", lambda **_: self.connection.count())
        return client

    def _trying(self, key: str, act: Callable[[], T], watch: Watch = FREELY) -> T:
        def watched() -> T:
            watch.before()
            return act()

        with self._errors(key):
            return self.connection.retries.run(watched, _is_transport, _may_pass)

    def listed(self, prefix: str, base: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix, keys without `base`; by ListObjects version 1, as OBS has no version 2."""
        last, is_more = "", True
        while is_more:
            ask = partial(self._client.list_objects, Bucket=self.bucket, Prefix=prefix, Marker=last)
            page = self._trying(prefix, ask)
            found = page.get("Contents", [])
            for item in found:
                last = item["Key"]
                if _REPLACEMENT in last and self.head(last, base) is None:
                    raise StoreError(
                        f"s3://{self.bucket}/{last}: the server does not list the control characters in this name",
                        "rename the object, without control characters",
                    )
                yield ObjectInfo(last[len(base) :], item["Size"], item.get("ETag", "").strip('"'))
            is_more = bool(found) and page.get("IsTruncated", False)

    def put(self, key: str, data: bytes, watch: Watch) -> str:
        """Store an object in one piece; its Content-MD5 verifies it."""
        put = partial(
            self._client.put_object, Bucket=self.bucket, Key=key, Body=data, ContentMD5=_in_base64(_md5(data))
        )
        return self._trying(key, put, watch)["ETag"].strip('"')

    def get(self, key: str) -> bytes:
        """Return an object whole."""

        def act() -> bytes:
            return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

        return self._trying(key, act)

    def head(self, key: str, base: str) -> ObjectInfo | None:
        """Return key, size and tag of an object, or None if it does not exist."""

        def act() -> ObjectInfo | None:
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                    return None
                raise
            return ObjectInfo(key[len(base) :], answer["ContentLength"], answer["ETag"].strip('"'))

        return self._trying(key, act)

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._trying(key, partial(self._client.delete_object, Bucket=self.bucket, Key=key))

    def url(self, key: str, expires: int) -> str:
        """Return an address that anybody may GET for `expires` seconds."""
        with self._errors(key):
            return self._client.generate_presigned_url(
                "get_object", Params={"Bucket": self.bucket, "Key": key}, ExpiresIn=expires
            )

    def post_form(self, prefix: str, expires: int) -> dict[str, Any]:
        """Return a form with which anybody may post objects below a prefix for `expires` seconds."""
        with self._errors(prefix):
            form = self._client.generate_presigned_post(
                self.bucket, prefix + "${filename}", Conditions=[["starts-with", "$key", prefix]], ExpiresIn=expires
            )
        return {"url": form["url"], "fields": dict(form["fields"]), "prefix": prefix}

    # ── large objects ───────────────────────────────────────────────────────────────────────────────────────────

    def put_parts(self, key: str, data: Iterator[bytes], most: int, watch: Watch) -> str:
        """Store a large object of at most `most` bytes in parts; it appears as a whole, or not at all.

        The parts that a dead upload of this key left are removed first: nobody else puts it now (see ObjectStore).
        """
        self._abort_leftovers(key)
        start = partial(self._client.create_multipart_upload, Bucket=self.bucket, Key=key)
        upload = self._trying(key, start, watch)["UploadId"]
        try:
            with ThreadPoolExecutor(_PARTS_AT_ONCE) as pool:
                sums = self._send_parts(pool, key, upload, parts(data, most), watch)
            return self._trying(key, partial(self._complete, key, upload, sums), watch)
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
            raise

    def _complete(self, key: str, upload: str, sums: list[_Part]) -> str:
        listed: Any = [{"PartNumber": number, "ETag": part.tag} for number, part in enumerate(sums, 1)]
        try:
            answer = self._client.complete_multipart_upload(
                Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": listed}
            )
            return answer["ETag"].strip('"')
        except ClientError as error:
            found = self.head(key, "") if error.response["Error"]["Code"] == "NoSuchUpload" else None
            own = part_tag([part.md5 for part in sums])
            if found and found.tag == own:  # an earlier try was done, and its answer lost
                return own
            raise

    def _abort_leftovers(self, key: str) -> None:
        """Remove the parts that a dead upload left; a server that has no list of them, or keeps it, keeps the parts."""
        with suppress(StoreError):
            ask = partial(self._client.list_multipart_uploads, Bucket=self.bucket, Prefix=key)
            for upload in self._trying(key, ask).get("Uploads", []):
                if upload["Key"] == key:
                    abort = partial(self._client.abort_multipart_upload, Bucket=self.bucket, Key=key)
                    self._trying(key, partial(abort, UploadId=upload["UploadId"]))

    def _send_parts(
        self, pool: ThreadPoolExecutor, key: str, upload: str, pieces: Iterator[bytearray], watch: Watch
    ) -> list[_Part]:
        running, done = deque[Future[_Part]](), list[_Part]()
        for number, piece in enumerate(pieces, 1):
            if len(running) == _PARTS_AT_ONCE:
                done.append(running.popleft().result())
            running.append(pool.submit(self._put_part, key, upload, number, piece, watch))
        return done + [future.result() for future in running]

    def _put_part(self, key: str, upload: str, number: int, piece: bytearray, watch: Watch) -> _Part:
        md5 = _md5(piece)
        put = partial(self._client.upload_part, Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number)
        answer = self._trying(key, partial(put, Body=piece, ContentMD5=_in_base64(md5)), watch)
        watch.sent(len(piece))
        return _Part(answer["ETag"], md5)

    # ── failures ────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        address = f"{self.connection.scheme}://{self.bucket}/{key}" if key else self.connection.uri
        try:
            yield
        except ClientError as error:
            code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            if error.operation_name in _OF_CREDENTIALS:
                raise credential_error(self.connection.address, "ClientError", str(error)) from error
            raise self.connection.server_errors.refused(address, code, message) from error
        except SSLError as error:
            text = str(error)
            is_certificate = "CERTIFICATE_VERIFY_FAILED" in text
            errors = self.connection.server_errors
            raise (errors.untrusted if is_certificate else errors.broken)(address, text) from error
        except (ConnectionError, HTTPClientError, IncompleteReadError) as error:
            raise self.connection.server_errors.broken(address, str(error), str(error)) from error
        except (BotoCoreError, EOFError) as error:
            name, text = type(error).__name__, str(error)
            if is_of_credentials(name):
                raise credential_error(self.connection.address, name, text) from error
            raise self.connection.server_errors.unexpected(address, text) from error


def _md5(data: bytes | bytearray) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _in_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _is_transport(error: Exception) -> bool:
    is_connection = isinstance(error, (ConnectionError, HTTPClientError, IncompleteReadError))
    return is_connection and not isinstance(error, SSLError)


def _may_pass(error: Exception) -> bool:
    return isinstance(error, ClientError) and (
        error.response["Error"]["Code"] in PASSING_CODES
        or error.response["ResponseMetadata"]["HTTPStatusCode"] in PASSING_STATUSES
    )
