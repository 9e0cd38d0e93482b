"""The address of a store: a folder, or a bucket with its server; and what is wrong with an address."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

REMOTE_SCHEMES = ("s3://", "obs://")
Addressing: TypeAlias = Literal["auto", "virtual", "path"]

BUCKET = r"[a-z0-9][a-z0-9._-]{1,62}"
SIGNED = re.compile(r"[?&](X-Amz-|X-Obs-|AWSAccessKeyId|AccessKeyId|Signature)", re.IGNORECASE)
_NO_SIGNATURE = "must not contain a signature: set credentials in AWS_… variables or a profile"


class StoreAddress(NamedTuple):
    """Where objects are (a folder without scheme, s3://… or obs://…) and how their server is reached."""

    uri: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing: Addressing | None = None
    ca_bundle: str | None = None

    @property
    def is_remote(self) -> bool:
        """Return whether the objects are on a server."""
        return self.uri.startswith(REMOTE_SCHEMES)


def store_uri_problem(text: str) -> str:
    """Return why a text cannot be the address of a store, or nothing."""
    if not text:
        return "must not be empty"
    if problem := name_problem(text):
        return problem
    scheme, separator, rest = text.partition("://")
    if separator and SIGNED.search(rest):
        return _NO_SIGNATURE
    if separator and scheme not in ("s3", "obs", "file"):
        return f"has the unknown scheme `{scheme}://`: use s3://bucket/prefix, obs://bucket/prefix or a folder"
    if separator and scheme != "file" and not re.fullmatch(rf"{BUCKET}(/.*)?", rest):
        return f"must name a bucket of 3 to 63 characters (a-z, 0-9, `.`, `-`): `{scheme}://bucket/prefix`"
    return ""


def name_problem(text: str) -> str:
    """Return why a text cannot be a part of an address, or nothing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return ""


def without_user(text: str) -> str:
    """Return an address without the user name and password that it may hold."""
    return re.sub(r"(?<=//)[^/?#]*@", "", text)


def endpoint_problem(text: str) -> str:
    """Return why a text cannot be the address of a server, or nothing."""
    from urllib.parse import urlsplit  # it costs more than a whole unchanged upload's other parts

    try:
        address = urlsplit(text)
        usable = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        return "must be an address like https://host or http://host:port"
    if SIGNED.search(text):
        return _NO_SIGNATURE
    if "@" in address.netloc:
        return "must not contain a user name or password: set keys in AWS_… variables or a profile"
    return ""
