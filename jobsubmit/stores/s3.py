"""A bucket as an object store: S3, OBS and MinIO, through boto3."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError, ProfileNotFound

from jobsubmit.errors import BundleError, StoreError
from jobsubmit.spec.model import StoreSpec
from jobsubmit.stores import ObjectInfo, Source, blocks, changed

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_LARGEST_PUT = 5 << 30
_CONNECTIONS = 32

_HINTS = {
    "NoSuchBucket": "create the bucket first, or correct store.uri",
    "AccessDenied": "the key may not do this here: check the bucket's policy and store.profile",
    "403": "the key may not do this here, or the bucket is somebody else's: check store.uri and store.profile",
    "InvalidAccessKeyId": "the server does not know this key: check the credentials and store.endpoint_url",
    "SignatureDoesNotMatch": "the secret key, store.region or store.endpoint_url is wrong",
    "ExpiredToken": "the session token has expired: get a new one",
    "RequestTimeTooSkewed": "the clock of this machine is more than 15 minutes off: set it",
    "PermanentRedirect": "the bucket lies in another region: set store.region",
    "BadDigest": "the file changed while it was sent, or the connection garbled it: run again",
}
_CREDENTIALS_HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or store.profile"


class S3Store:
    """Keep objects in a bucket; the server proves each upload by its Content-MD5."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.uri = (spec.uri or "").rstrip("/")
        scheme, _, rest = self.uri.partition("://")
        self.bucket, _, folder = rest.partition("/")
        self.prefix = f"{folder}/" if folder else ""
        if scheme == "obs" and not spec.endpoint_url:
            raise StoreError(
                f"{self.uri}: obs:// needs store.endpoint_url",
                "e.g. endpoint_url: https://obs.REGION.myhuaweicloud.com",
                where="store.endpoint_url",
            )

    @cached_property
    def _client(self) -> S3Client:
        # OBS refuses path style and signed trailers (its documentation); MinIO on an address needs path style.
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": self._addressing, "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "max_attempts": 5},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=_CONNECTIONS,
        )
        with self._errors(""):
            session = boto3.Session(profile_name=self.spec.profile, region_name=self.spec.region)
            return session.client(
                "s3",
                endpoint_url=self.spec.endpoint_url,
                region_name=self.spec.region or session.region_name or "us-east-1",
                config=config,
            )

    @property
    def _addressing(self) -> Literal["auto", "virtual", "path"]:
        if self.spec.addressing in ("virtual", "path"):
            return self.spec.addressing
        if self.uri.startswith("obs://"):
            return "virtual"
        host = urlsplit(self.spec.endpoint_url or "").hostname or ""
        return "path" if host == "localhost" or host.replace(".", "").isdigit() or ":" in host else "virtual"

    def put(self, key: str, source: Source, sha256: str) -> None:
        """Store an object (see ObjectStore)."""
        md5, size = _proven_md5(source, sha256, key)
        if size > _LARGEST_PUT:
            raise StoreError(f"{key} is {size:,} bytes long; one object takes at most {_LARGEST_PUT:,}", "leave it out")
        with self._errors(key):
            if isinstance(source, bytes):
                self._client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=source, ContentMD5=md5)
            else:
                with source.open("rb") as stream:
                    self._client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=stream, ContentMD5=md5)

    def get(self, key: str) -> bytes:
        """Return an object whole (see ObjectStore)."""
        with self._errors(key):
            return self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"].read()

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object (see ObjectStore)."""
        with self._errors(key):
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=self.prefix + key)
            except ClientError as error:
                if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                    return None
                raise
            return ObjectInfo(key, answer["ContentLength"])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix (see ObjectStore); the first version of the call, for OBS has no second."""
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects").paginate(Bucket=self.bucket, Prefix=self.prefix + prefix)
            for page in pages:
                for item in page.get("Contents", []):
                    yield ObjectInfo(item["Key"][len(self.prefix) :], item["Size"])

    def delete(self, key: str) -> None:
        """Remove an object (see ObjectStore)."""
        with self._errors(key):
            self._client.delete_object(Bucket=self.bucket, Key=self.prefix + key)

    def url(self, key: str, expires: int) -> str:
        """Return a presigned address (see ObjectStore)."""
        with self._errors(key):
            return self._client.generate_presigned_url(
                "get_object", Params={"Bucket": self.bucket, "Key": self.prefix + key}, ExpiresIn=expires
            )

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        address = f"{self.uri}/{key}" if key else self.uri
        try:
            yield
        except ClientError as error:
            code = error.response["Error"]["Code"]
            hint = _HINTS.get(code, "see the server's message; `--debug` shows where it happened")
            raise StoreError(
                f"{address}: {code} {error.response['Error'].get('Message', '')}", hint, self.uri
            ) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StoreError(f"{address}: there are no credentials for it", _CREDENTIALS_HINT, self.uri) from error
        except ProfileNotFound as error:
            raise StoreError(f"{address}: {error}", "correct store.profile", self.uri) from error
        except BotoCoreError as error:
            endpoint = self.spec.endpoint_url or "AWS"
            hint = f"check that {endpoint} is reachable, and store.endpoint_url"
            raise StoreError(f"{address}: {error}", hint, self.uri) from error


def _proven_md5(source: Source, sha256: str, key: str) -> tuple[str, int]:
    """Return (Content-MD5, size) of a source; raise BundleError unless its sha256 is the expected one."""
    proof, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    try:
        for block in blocks(source):
            proof.update(block)
            md5.update(block)
            size += len(block)
    except OSError as error:
        raise BundleError(f"{source!s} cannot be read: {error.strerror}", "run again") from error
    if proof.hexdigest() != sha256:
        raise changed(source, key)
    return base64.b64encode(md5.digest()).decode(), size
