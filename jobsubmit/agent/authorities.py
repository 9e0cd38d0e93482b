"""The certificate authorities that a node trusts: those of its system, and those of the job."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    import ssl


def make_context(certificates: str) -> ssl.SSLContext:
    """Return the SSL context of a connection; `certificates` are in PEM form, and may be empty."""
    import ssl

    context = ssl.create_default_context()
    if certificates:
        context.load_verify_locations(cadata=certificates)
    return context


def trust(certificates: str) -> None:
    """Make urllib trust these certificates, too, in all connections of this process."""
    import urllib.request

    handler = urllib.request.HTTPSHandler(context=make_context(certificates))
    urllib.request.install_opener(urllib.request.build_opener(handler))
