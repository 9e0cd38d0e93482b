"""A bucket, with the standard library only: list, read, write and remove objects. Each address is signed."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from xml.etree import ElementTree

from .. import sigv4
from ..authorities import make_context
from ..protocol import DataAccess
from ..retry import PASSING_STATUSES, pause_before

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, NoReturn

    Listed = tuple[str, int, str]  # key, size in bytes, tag

_ATTEMPTS = 4
_ANSWER_SECONDS = 60
_VALID_SECONDS = 7 * 24 * 3600  # of a signature: S3 allows no more, and a large input takes long
_LARGE, _PART = 64 << 20, 16 << 20  # bytes: from where on an object goes in parts, and of a part
_MOST_PARTS = 9_000


class BucketError(Exception):
    """The server refused a request, or cannot be reached; the message is one line that says why."""


class Bucket:
    """One bucket on the server of a job's data."""

    def __init__(self, name: str, access: DataAccess) -> None:
        self.name, self.base, self.region = name, access["buckets"][name], access["region"]
        self.keys = (access["key"], access["secret"], access["token"])
        is_private = bool(access["certificates"]) and self.base.startswith("https:")
        self.context = make_context(access["certificates"]) if is_private else None

    def address(self, key: str, method: str = "GET", query: Mapping[str, str] | None = None) -> str:
        """Return an address of an object with a signature for one method."""
        url = self.base + urllib.parse.quote(key)
        return sigv4.sign_url(url, method, self.region, query=query, keys=self.keys, valid=_VALID_SECONDS)

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield key, size and tag of every object below a prefix; by ListObjects version 1, as OBS has no version 2."""
        last, is_more = "", True
        while is_more:
            query = {"encoding-type": "url", "prefix": prefix, **({"marker": last} if last else {})}
            root = self._listing(prefix, self._ask("GET", "", None, query))
            space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
            found = list(root.iter(space + "Contents"))
            is_encoded = root.findtext(space + "EncodingType") == "url"
            for item in found:
                key, size, tag = (item.findtext(space + name) or "" for name in ("Key", "Size", "ETag"))
                last = urllib.parse.unquote_plus(key) if is_encoded else key
                yield last, int(size), tag.strip('"')
            is_more = bool(found) and root.findtext(space + "IsTruncated") == "true"

    def _listing(self, prefix: str, answer: bytes) -> ElementTree.Element:
        try:
            return ElementTree.fromstring(answer)  # noqa: S314 - a server that the user trusts with the data
        except ElementTree.ParseError as error:
            text = "the server's list of objects cannot be read (%s): rename objects that have control characters"
            raise BucketError("s3://%s/%s: %s" % (self.name, prefix, text % error)) from error

    def read(self, key: str) -> bytes | None:
        """Return a small object whole; None if it does not exist."""
        try:
            return self._ask("GET", key)
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        """Remove an object; one that does not exist is not an error."""
        self._ask("DELETE", key)

    def write(self, key: str, path: str) -> None:
        """Store a file; raise BucketError, or OSError if it cannot be read any more."""
        size = os.stat(path).st_size
        if size < _LARGE:
            with open(path, "rb") as stream:
                self._ask("PUT", key, stream.read())
            return
        upload = _text_of(self._ask("POST", key, b"", {"uploads": ""}), "UploadId")
        try:
            self._write_parts(key, path, upload, max(_PART, -(-size // _MOST_PARTS)))
        except BaseException:
            self._ask("DELETE", key, None, {"uploadId": upload})  # unfinished parts cost money
            raise

    def _write_parts(self, key: str, path: str, upload: str, size: int) -> None:
        tags = []
        with open(path, "rb") as stream:
            for number, part in enumerate(iter(lambda: stream.read(size), b""), start=1):
                _, tag = self._exchange("PUT", key, part, {"partNumber": str(number), "uploadId": upload})
                tags.append((number, tag))
        listed = "".join("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>" % tag for tag in tags)
        body = "<CompleteMultipartUpload>%s</CompleteMultipartUpload>" % listed
        answer = self._ask("POST", key, body.encode(), {"uploadId": upload})
        if b"<Error" in answer:  # with status 200 (S3's documentation)
            raise BucketError("s3://%s/%s: the server could not join the parts" % (self.name, key))

    def _ask(self, method: str, key: str, data: bytes | None = None, query: Mapping[str, str] | None = None) -> bytes:
        """Send a request, again after what may pass, and return the body of the answer."""
        return self._exchange(method, key, data, query)[0]

    def _exchange(
        self, method: str, key: str, data: bytes | None = None, query: Mapping[str, str] | None = None
    ) -> tuple[bytes, str]:
        """Return the body of the answer, and its tag."""
        headers = {"Content-Type": "application/octet-stream"}
        if data is not None:
            digest = _md5(data).digest()
            headers["Content-MD5"] = base64.b64encode(digest).decode()
        problem = None  # type: Exception | None
        for attempt in range(1, _ATTEMPTS + 1):
            address = self.address(key, method, query)
            request = urllib.request.Request(address, data=data, method=method, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=self.context) as answer:
                    return bytes(answer.read()), answer.headers.get("ETag", "").strip('"')
            except urllib.error.HTTPError as error:
                if error.code not in PASSING_STATUSES:
                    self._refused(key, method, error)
                problem = error
            except (OSError, http.client.HTTPException) as error:
                problem = error
            if attempt < _ATTEMPTS:
                time.sleep(pause_before(attempt, first=1.0))
        raise BucketError("s3://%s/%s: %s" % (self.name, key, problem))

    def _refused(self, key: str, method: str, error: urllib.error.HTTPError) -> NoReturn:
        if error.code == 404 and method == "GET":  # noqa: PLR2004 - HTTP
            raise FileNotFoundError(key)
        code = _text_of(error.read(), "Code") or str(error.code)
        raise BucketError("s3://%s/%s: the server refused it (%s)" % (self.name, key, code))


def _text_of(document: bytes, name: str) -> str:
    """Return the text of the first element with a name; empty if there is none."""
    try:
        root = ElementTree.fromstring(document)  # noqa: S314 - a server that the user trusts with the data
    except ElementTree.ParseError:
        return ""
    found = (item.text or "" for item in root.iter() if item.tag.rpartition("}")[2] == name)
    return next(found, "")


def _md5(data: bytes) -> Any:
    """Return the md5 of what is sent, which the server compares; it protects from damage, and not from people."""
    if sys.version_info >= (3, 9):
        return hashlib.md5(data, usedforsecurity=False)
    return hashlib.md5(data)  # noqa: S324
