"""Who gets an answer: a browser of this machine that knows the token, on a page of ours."""

from __future__ import annotations

import hmac
import secrets
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOSTS = frozenset(["127.0.0.1", "localhost", "::1"])
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def new_token() -> str:
    """Return what an address must contain: nobody can guess it."""
    return secrets.token_urlsafe(24)


class Guard:
    """Answers only requests whose path begins with the token and whose Host and Origin are this machine.

    Everybody else gets an empty 404: other users of the machine, other sites in the same browser, and names that
    someone points at a loopback address.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, without the token in its path, or refuse it."""
        if scope["type"] != "http":
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given, _, rest = scope["path"].removeprefix("/").partition("/")
        is_known = hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())
        if not (is_known and _is_ours(headers, scope["method"])):
            await _refuse(send)
            return
        if scope["path"] == f"/{self.token}":  # the links on a page are relative to the last slash
            await _redirect(send, f"/{self.token}/")
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        inner: dict[str, Any] = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
        await self.app(inner, receive, send_guarded)


def _is_ours(headers: dict[bytes, str], method: str) -> bool:
    """Return whether Host is a loopback name, and a page that asks is one of ours.

    A link of another page may be followed, if it contains the token: a file that opens the page, an editor.
    """
    host = headers.get(b"host", "")
    if _part_of(f"//{host}", "hostname") not in _HOSTS:
        return False
    origin = headers.get(b"origin")
    if origin is not None and _part_of(origin, "netloc") != host:
        return False
    is_link = method == "GET" and headers.get(b"sec-fetch-mode") == "navigate"
    is_link = is_link and headers.get(b"sec-fetch-dest") == "document"
    return is_link or headers.get(b"sec-fetch-site", "none") in ("none", "same-origin")


def _part_of(address: str, name: str) -> str | None:
    try:
        found: str | None = getattr(urlsplit(address), name)
    except ValueError:
        return None
    return found


async def _redirect(send: Send, path: str) -> None:
    headers = [(b"location", path.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
