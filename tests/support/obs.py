"""What OBS documents as refused, as a rule for the proxy in front of a server that knows more than OBS does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proxy import Answer, Proxy, Seen

_PAYLOADS = ("UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
_UNKNOWN = ("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer")


@dataclass(frozen=True)
class Domain:
    """Hold a server that finds its buckets by name, and the proxy that every request goes through."""

    endpoint: str
    line: Proxy

    @property
    def host(self) -> str:
        """Return the name that every bucket's name stands before."""
        return self.endpoint.partition("://")[2]


def refusals(domain: Domain) -> Callable[[Seen], Answer | None]:
    """Return the rule of a proxy that is as strict as OBS."""

    def rule(seen: Seen) -> Answer | None:
        query, names = seen.path.partition("?")[2], set(seen.headers)
        wrong = {
            "VirtualHostDomainRequired": not seen.headers["host"].endswith(f".{domain.host}"),
            "ChecksumOrTrailer": any(name.startswith(_UNKNOWN) for name in names),
            "PayloadMode": seen.headers.get("x-amz-content-sha256", _PAYLOADS[0]) not in _PAYLOADS,
            "ListObjectsV2": "list-type" in query,
            "ConditionalPut": seen.method == "PUT" and bool({"if-none-match", "if-match"} & names),
            "MissingContentMD5": seen.method == "POST" and query.startswith("delete") and "content-md5" not in names,
        }
        return next((Answer("400 Bad Request", code) for code, is_wrong in wrong.items() if is_wrong), None)

    return rule
