"""The authorities that verify a server's certificate, if the user names a file of them (a CA bundle)."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jobsubmit.errors import StoreError

HINT = (
    "set store.ca_bundle (`upload` and `download`: --ca-bundle) or AWS_CA_BUNDLE to the file of the authority that "
    "signed it"
)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END CERTIFICATE-----")
_ANSWER_SECONDS = 5
_DER = 2  # _ssl.ENCODING_DER
# The only setting of authorities that obstore knows: it is read whenever a client is made.
_READ_BY_OBSTORE = "SSL_CERT_FILE"


def require_certificates(bundle: str) -> None:
    """Raise StoreError unless a file can be read and contains a certificate."""
    if not _certificates(_read(bundle)):
        raise StoreError(f"the CA bundle {bundle} contains no certificate in PEM format", _correct(bundle))


def private_certificates(bundle: str, server: str) -> str:
    """Return the certificates (PEM, may be empty) that nodes need to verify a server, beside the public authorities.

    This is the root of the server's certificate; if the server cannot be reached, all private ones.
    """
    public = set(_certificates(_public_bundle()))
    own = [body for body in _certificates(_read(bundle)) if body not in public]
    root = _root(bundle, server) if own else ""
    needed = [root] if root and root not in public else [] if root else own
    return "".join(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n" for body in needed)


def merged(bundles: Sequence[str]) -> str:
    """Return one file with the certificates of all bundles: the only bundle, or a file in this process's memory."""
    if len(bundles) == 1:
        return bundles[0]
    descriptor = os.memfd_create("authorities")
    with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as stream:
        stream.write("\n".join(map(_read, bundles)))
    return f"/proc/{os.getpid()}/fd/{descriptor}"


@contextmanager
def read_by_obstore(bundle: str) -> Iterator[None]:
    """Make obstore clients that are created in this context trust these authorities only."""
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


def _root(bundle: str, server: str) -> str:
    """Return the last certificate of the way from a server's to an authority; nothing where there is no answer."""
    import socket
    import ssl
    from urllib.parse import urlsplit

    address = urlsplit(server)
    context = ssl.create_default_context(cafile=bundle)
    try:
        with (
            socket.create_connection((address.hostname, address.port or 443), _ANSWER_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=address.hostname) as encrypted,
        ):
            asked: Any = encrypted
            if not hasattr(asked, "get_verified_chain"):  # before Python 3.13
                asked = asked._sslobj
            chain = asked.get_verified_chain()
    except (OSError, AttributeError):
        return ""
    last: Any = chain[-1]
    data = last if isinstance(last, bytes) else last.public_bytes(_DER)
    return _body(base64.b64encode(data).decode())


def _correct(bundle: str) -> str:
    named = [
        name for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE") if os.environ.get(name) == bundle
    ]
    return f"correct {' or '.join(named)}" if named else "correct store.ca_bundle, or ca_bundle in the AWS profile"


def _certificates(text: str) -> list[str]:
    """Return the bodies of all certificates, each in lines of 64 letters."""
    return [_body("".join(found.split())) for found in _CERTIFICATE.findall(text)]


def _body(text: str) -> str:
    return "\n".join(text[at : at + 64] for at in range(0, len(text), 64))


def _public_bundle() -> str:
    """Return the public authorities, as botocore brings them."""
    found = find_spec("botocore")
    file = Path(found.origin or "").with_name("cacert.pem") if found else Path("/nowhere")
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
