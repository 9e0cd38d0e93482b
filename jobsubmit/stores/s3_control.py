"""What a bucket needs beside the fast way: credentials of every kind, listings, parts, odd names; all by boto3."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError, ProfileNotFound

from jobsubmit.bundle import changed
from jobsubmit.errors import BundleError, StoreError
from jobsubmit.stores import ObjectInfo, Progress
from jobsubmit.stores.s3_connection import CREDENTIALS_HINT, HINTS, UNEXPECTED_HINT, Connection

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_PART = 16 << 20
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 4
_STARTS = 3


class S3Control:
    """Do the rarer work on a bucket; keys here include the store's prefix."""

    def __init__(self, line: Connection) -> None:
        self.line, self.bucket = line, line.bucket

    @cached_property
    def _session(self) -> boto3.Session:
        return boto3.Session(profile_name=self.line.address.profile, region_name=self.line.access.region)

    @cached_property
    def _client(self) -> S3Client:
        # OBS refuses path style and signed trailers (its documentation); MinIO on an address needs path style.
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "virtual" if self.line.is_virtual else "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "max_attempts": 8},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=64,
        )
        client = self._session.client("s3", endpoint_url=self.line.access.endpoint_url, config=config)
        client.meta.events.register("before-send.s3", lambda **_: self.line.count())
        return client

    def credential_provider(self) -> Callable[[], Any]:
        """Return what gives obstore the keys that this session finds, and new ones when they expire."""
        from obstore.auth.boto3 import Boto3CredentialProvider

        with self._errors(""):
            if self._session.get_credentials() is None:
                raise NoCredentialsError
            return Boto3CredentialProvider(self._session)

    def listed(self, prefix: str, base: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix, keys without `base`; by the call's first version: OBS has no second."""
        with self._errors(prefix):
            for page in self._client.get_paginator("list_objects").paginate(Bucket=self.bucket, Prefix=prefix):
                for item in page.get("Contents", []):
                    yield ObjectInfo(item["Key"][len(base) :], item["Size"], item["ETag"].strip('"'))

    def put(self, key: str, data: bytes) -> str:
        """Store an object in one piece; its Content-MD5 proves it."""
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        with self._errors(key):
            answer = self._client.put_object(Bucket=self.bucket, Key=key, Body=data, ContentMD5=md5)
            return answer["ETag"].strip('"')

    def get(self, key: str) -> bytes:
        """Return an object whole."""
        with self._errors(key):
            return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def head(self, key: str, base: str) -> ObjectInfo | None:
        """Return what is known of an object, or None when there is none."""
        with self._errors(key):
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                    return None
                raise
            return ObjectInfo(key[len(base) :], answer["ContentLength"], answer["ETag"].strip('"'))

    def delete(self, key: str) -> None:
        """Remove an object."""
        with self._errors(key):
            self._client.delete_object(Bucket=self.bucket, Key=key)

    def url(self, key: str, expires: int) -> str:
        """Return an address that anybody may GET for `expires` seconds."""
        with self._errors(key):
            return self._client.generate_presigned_url(
                "get_object", Params={"Bucket": self.bucket, "Key": key}, ExpiresIn=expires
            )

    # ── large objects ───────────────────────────────────────────────────────────────────────────────────────────

    def put_parts(self, key: str, file: Path, sha256: str, progress: Progress) -> str:
        """Store a large file in parts; it is there at once when the last part is, or never.

        What a dead upload left of this key is removed first. Should somebody else be at the same key, both start over.
        """
        with self._errors(key):
            for start in range(1, _STARTS + 1):
                self._abort_leftovers(key)
                try:
                    return self._put_parts_once(key, file, sha256, progress)
                except ClientError as error:
                    if error.response["Error"]["Code"] != "NoSuchUpload" or start == _STARTS:
                        raise
        raise AssertionError

    def _abort_leftovers(self, key: str) -> None:
        answer = self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=key)
        for upload in answer.get("Uploads", []):
            if upload["Key"] == key:
                with suppress(ClientError):
                    self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload["UploadId"])

    def _put_parts_once(self, key: str, file: Path, sha256: str, progress: Progress) -> str:
        upload = self._client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        try:
            with ThreadPoolExecutor(_PARTS_AT_ONCE) as pool:
                parts = self._sent_parts(pool, key, upload, file, sha256, progress)
            answer = self._client.complete_multipart_upload(
                Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
            )
            return answer["ETag"].strip('"')
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
            raise

    def _sent_parts(
        self, pool: ThreadPoolExecutor, key: str, upload: str, file: Path, sha256: str, progress: Progress
    ) -> list[Any]:
        digest, running, parts = hashlib.sha256(), deque[Future[Any]](), []
        size = max(_PART, -(-file.stat().st_size // _MOST_PARTS))
        try:
            with file.open("rb", buffering=0) as stream:
                number = 0
                while block := _read_full(stream, size):
                    digest.update(block)
                    number += 1
                    if len(running) == _PARTS_AT_ONCE:
                        parts.append(running.popleft().result())
                    running.append(pool.submit(self._put_part, key, upload, number, block, progress))
        except OSError as error:
            raise BundleError(f"{file} changed or vanished while it was read: {error.strerror}", "run again") from error
        if digest.hexdigest() != sha256:
            raise changed(file)
        return parts + [future.result() for future in running]

    def _put_part(self, key: str, upload: str, number: int, block: bytes, progress: Progress) -> dict[str, Any]:
        md5 = base64.b64encode(hashlib.md5(block, usedforsecurity=False).digest()).decode()
        answer = self._client.upload_part(
            Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=block, ContentMD5=md5
        )
        progress(len(block))
        return {"PartNumber": number, "ETag": answer["ETag"]}

    # ── failures ────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        address = f"{self.line.scheme}://{self.bucket}/{key}" if key else self.line.uri
        try:
            yield
        except ClientError as error:
            code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
            hint = HINTS.get(code, UNEXPECTED_HINT)
            raise StoreError(f"{address}: {code} {message}".rstrip(), hint, self.line.uri) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StoreError(f"{address}: there are no credentials for it", CREDENTIALS_HINT, self.line.uri) from error
        except ProfileNotFound as error:
            raise StoreError(f"{address}: {error}", "correct store.profile", self.line.uri) from error
        except BotoCoreError as error:
            endpoint = self.line.access.endpoint_url or "AWS"
            hint = f"check that {endpoint} is reachable, and store.endpoint_url"
            raise StoreError(f"{address}: {error}", hint, self.line.uri) from error


def _read_full(stream: Any, size: int) -> bytes:
    """Return the next `size` bytes of a file, fewer only at its end."""
    pieces, wanted = [], size
    while wanted and (piece := stream.read(wanted)):
        pieces.append(piece)
        wanted -= len(piece)
    return b"".join(pieces)
