"""Sign addresses of a bucket with keys from the environment: AWS Signature Version 4, as query parameters."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import urllib.parse

_ALGORITHM = "AWS4-HMAC-SHA256"
_VALID_SECONDS = 3600


TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping


def sign_url(
    url: str,
    method: str,
    region: str,
    now: str = "",
    *,
    query: Mapping[str, str] | None = None,
    keys: tuple[str, str, str] | None = None,
    valid: int = _VALID_SECONDS,
) -> str:
    """Return the address of an object with a signature for one method. Raises OSError if there are no keys.

    `now` is the time of the signature, as 20261121T120000Z; default: the current time. `query` are parameters of the
    request, and `valid` is how many seconds the signature lasts. `keys` are key id, secret and session token; default:
    those of the environment.
    """
    key, secret, token = keys or _keys_of_environment()
    now = now or datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    scope = "/".join((now[:8], region, "s3", "aws4_request"))
    parameters = {
        **(query or {}),
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": "%s/%s" % (key, scope),
        "X-Amz-Date": now,
        "X-Amz-Expires": str(valid),
        "X-Amz-SignedHeaders": "host",
    }
    if token:
        parameters["X-Amz-Security-Token"] = token
    address = urllib.parse.urlsplit(url)
    words = "&".join("%s=%s" % (name, urllib.parse.quote(value, safe="")) for name, value in sorted(parameters.items()))
    canonical = "\n".join((method, address.path, words, "host:" + address.netloc, "", "host", "UNSIGNED-PAYLOAD"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signing_key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        signing_key = hmac.new(signing_key, part.encode(), hashlib.sha256).digest()
    text = "\n".join((_ALGORITHM, now, scope, digest))
    return "%s?%s&X-Amz-Signature=%s" % (url, words, hmac.new(signing_key, text.encode(), hashlib.sha256).hexdigest())


def _keys_of_environment() -> tuple[str, str, str]:
    try:
        key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    except KeyError as error:
        raise OSError("%s is not set: see backend.credentials_secret" % error.args[0]) from None
    return key, secret, os.environ.get("AWS_SESSION_TOKEN", "")
