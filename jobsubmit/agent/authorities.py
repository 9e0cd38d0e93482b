"""The authorities that a node checks servers with: those of its system, and those that came with the job."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    import ssl


def make_context(certificates: str) -> ssl.SSLContext:
    """Return how a connection is checked; `certificates` are in PEM form, and may be none."""
    import ssl

    context = ssl.create_default_context()
    if certificates:
        context.load_verify_locations(cadata=certificates)
    return context


def trust(certificates: str) -> None:
    """Have urllib check all servers of this process with these certificates, too."""
    import urllib.request

    handler = urllib.request.HTTPSHandler(context=make_context(certificates))
    urllib.request.install_opener(urllib.request.build_opener(handler))
