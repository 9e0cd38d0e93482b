"""Errors of a bucket's server, of its certificate and of the connection to it, each with a hint."""

from __future__ import annotations

import html
import os
import re
from functools import cached_property
from typing import TYPE_CHECKING

from jobsubmit.common.store_address import without_user
from jobsubmit.errors import StoreError, StoreRefusedError
from jobsubmit.stores.authorities import HINT as _AUTHORITY_HINT

if TYPE_CHECKING:
    from jobsubmit.stores.credentials import Access

_ENDPOINT = "store.endpoint_url (`upload` and `download`: --endpoint-url)"
_REGION = "store.region (--region)"
_HINTS = {
    "NoSuchBucket": "create the bucket first, or correct its name",
    "AccessDenied": "the access key has no permission for this: check the bucket's policy and the credentials",
    "403": "the access key has no permission for this, or the bucket is not yours: check its name and the credentials",
    "InvalidAccessKeyId": f"the server does not know this access key: check the credentials and {_ENDPOINT}",
    "XAdminUserNotFound": f"the server does not know this access key: check the credentials and {_ENDPOINT}",
    "SignatureDoesNotMatch": f"the secret key, {_REGION}, or {_ENDPOINT} is wrong",
    "ExpiredToken": "the session token has expired: get a new one",
    "InvalidTokenId": "the server does not know this session token: get a new one",
    "RequestTimeTooSkewed": "the clock of this machine is more than 15 minutes off: set it",
    "PermanentRedirect": f"the bucket is in another region: set {_REGION}",
    "AuthorizationHeaderMalformed": f"the bucket is in another region: set {_REGION}",
    "XMinioStorageFull": "the server's disk is full: make room there, then run again",
    "SlowDown": "the server is overloaded: run again later",
}
_UNEXPECTED_HINT = "see the server's message, or run again with `--debug` to see where it happened"
# What servers answer that take the path of their address for a bucket, or for nothing of theirs.
_OF_A_PATH = ("NoSuchBucket", "NoSuchKey", "InvalidBucketName", "MethodNotAllowed", "400", "403", "404", "405")
_UNKNOWN = "it is signed by an unknown authority"
# Words of rustls and of OpenSSL.
_CERTIFICATE_PROBLEMS = {
    **{"Expired": "it has expired", "has expired": "it has expired", "NotValidYet": "it is not valid yet"},
    **{"not yet valid": "it is not valid yet", "NotValidForName": "it is for another name"},
    **{"Hostname mismatch": "it is for another name", "IP address mismatch": "it is for another address"},
    **{"UnknownIssuer": _UNKNOWN, "unable to get": _UNKNOWN, "self-signed": _UNKNOWN, "self signed": _UNKNOWN},
}
_NO_TLS = ("InvalidContentType", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "wrong version number")
_WANTS_TLS = "HTTP request to an HTTPS server"
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


class ServerErrors:
    """Makes the errors of one store, each with a hint; `where` is the address of the object of a request."""

    def __init__(self, uri: str, access: Access) -> None:
        self.uri, self.access = uri, access
        self.server = access.endpoint_url or "https://s3.amazonaws.com"

    @cached_property
    def proxy(self) -> str:
        """Return the proxy that requests to the server go through, or nothing."""
        if not any(os.environ.get(name) for name in _PROXY_VARIABLES):
            return ""
        from urllib.parse import urlsplit
        from urllib.request import getproxies_environment, proxy_bypass

        address, proxies = urlsplit(self.server), getproxies_environment()
        if proxy_bypass(address.netloc):
            return ""
        return without_user(proxies.get(address.scheme) or proxies.get("all") or "")

    def refused(self, where: str, code: str, message: str) -> StoreRefusedError:
        """Return the error for a request that the server refused, by its error code or HTTP status."""
        said = " ".join(html.unescape(message).split())
        hint = _HINTS.get(code, _UNEXPECTED_HINT)
        path = self.server.partition("://")[2].partition("/")[2].strip("/")
        if _WANTS_TLS in said:
            hint = "use https:// in the server's address"
        elif path and code in _OF_A_PATH:
            hint += f"; the server's address has the path /{path}: remove it, unless the server needs it"
        return StoreRefusedError(f"{_shown(where)}: {code} {said}".rstrip(), hint, self.uri)

    def broken(self, where: str, problem: str, details: str = "") -> StoreError:
        """Return the error for a connection that failed or was lost."""
        if any(sign in details for sign in _NO_TLS):
            text = f"{_shown(where)}: {self.server} does not speak TLS"
            return StoreError(text, "use http:// in the server's address, or set up TLS on the server", self.uri)
        if self.proxy:
            text = f"{_shown(where)}: no connection to {self.server} through the proxy {self.proxy}: {problem}"
            return StoreError(text, "correct HTTP_PROXY or HTTPS_PROXY, or add the server to NO_PROXY", self.uri)
        server = self.access.endpoint_url or "AWS"
        hint = f"check that {server} is reachable, and {_ENDPOINT}"
        return StoreError(f"{_shown(where)}: {problem}", hint, self.uri)

    def untrusted(self, where: str, text: str) -> StoreError:
        """Return the error for a certificate that is refused."""
        problem = next((meaning for sign, meaning in _CERTIFICATE_PROBLEMS.items() if sign in text), "it is not valid")
        bundles = ", ".join(self.access.ca_bundles)
        checked = f" (checked with {bundles})" if bundles else ""
        hint = "renew the server's certificate, or correct the address"
        hint = _AUTHORITY_HINT if problem == _UNKNOWN else hint
        said = f"the certificate of {self.server} is refused: {problem}{checked}"
        return StoreError(f"{_shown(where)}: {said}", hint, self.uri)

    def unexpected(self, where: str, text: str) -> StoreError:
        """Return the error for a failure that is not known."""
        return StoreError(f"{_shown(where)}: {text.partition(os.linesep)[0]}", _UNEXPECTED_HINT, self.uri)


def _shown(where: str) -> str:
    """Return an address on one line: a key may hold line ends and other controls."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in where)


def transport_problem(text: str) -> str:
    """Return in a few words why a connection failed, taken from obstore's text."""
    if "TimedOut" in text:
        return "the server did not answer in time"
    found = re.search(r'(?:message|error): "([^"]+)"', text)
    return found[1] if found else "the connection failed"
