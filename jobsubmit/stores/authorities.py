"""The authorities that a server's certificate is checked with, where somebody names a file of them (a CA bundle)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from jobsubmit.errors import StoreError

HINT = "name the file of the authority that signed it: store.ca_bundle (--ca-bundle) or AWS_CA_BUNDLE"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END CERTIFICATE-----")
# The only setting of authorities that obstore knows: it is read whenever a client is made.
_READ_BY_OBSTORE = "SSL_CERT_FILE"


def require_certificates(bundle: str) -> None:
    """Raise StoreError unless a file can be read and holds a certificate."""
    if not _certificates(_read(bundle)):
        raise StoreError(f"the CA bundle {bundle} holds no certificate in PEM form", _correct(bundle))


def private_certificates(bundle: str) -> str:
    """Return the certificates of a bundle that are not public: nodes have the public ones."""
    public = set(_certificates(_public_bundle()))
    own = [body for body in _certificates(_read(bundle)) if body not in public]
    return "".join(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n" for body in own)


@contextmanager
def read_by_obstore(bundle: str) -> Iterator[None]:
    """Have clients of obstore that are made here take these authorities, and no others."""
    before = os.environ.get(_READ_BY_OBSTORE)
    if bundle:
        os.environ[_READ_BY_OBSTORE] = bundle
    try:
        yield
    finally:
        if bundle and before is None:
            del os.environ[_READ_BY_OBSTORE]
        elif bundle and before is not None:
            os.environ[_READ_BY_OBSTORE] = before


def _read(bundle: str) -> str:
    try:
        return Path(bundle).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"the CA bundle {bundle} cannot be read: {error.strerror}", _correct(bundle)) from error


def _correct(bundle: str) -> str:
    named = [
        name for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE") if os.environ.get(name) == bundle
    ]
    return f"correct {' or '.join(named)}" if named else "correct store.ca_bundle, or ca_bundle in the AWS profile"


def _certificates(text: str) -> list[str]:
    """Return the bodies of all certificates, each in lines of 64 letters."""
    bodies = ("".join(found.split()) for found in _CERTIFICATE.findall(text))
    return ["\n".join(body[at : at + 64] for at in range(0, len(body), 64)) for body in bodies]


def _public_bundle() -> str:
    """Return the public authorities, as botocore brings them."""
    found = find_spec("botocore")
    file = Path(found.origin or "").with_name("cacert.pem") if found else Path("/nowhere")
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
