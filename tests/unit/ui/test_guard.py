"""Who gets an answer from the pages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobsubmit.ui.guard import Guard

TOKEN = "secret-token"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def ask(path: str, **headers: str) -> tuple[int, bytes, dict[bytes, bytes]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"host": "127.0.0.1:6070", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value],
    }
    asyncio.run(Guard(inner, TOKEN)(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


@pytest.mark.parametrize("host", ["127.0.0.1:6070", "localhost:6070", "localhost", "[::1]:6070", "localhost:9999"])
def test_who_knows_the_token_gets_the_page(host: str) -> None:
    status, body, headers = ask(f"/{TOKEN}/job/a", host=host)
    assert (status, body) == (200, b"/job/a")
    assert b"'unsafe" not in headers[b"content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/", "/job/a", "/secret/", f"/x/{TOKEN}/", f"//{TOKEN}/", f"/{TOKEN}x/", "/%73ecret-token/", "/日本/"]
)
def test_without_the_token_there_is_nothing(path: str) -> None:
    assert ask(path)[:2] == (404, b"")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:6070"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[bad"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_other_sites_and_names_get_nothing(headers: dict[str, str]) -> None:
    assert ask(f"/{TOKEN}/", **headers)[:2] == (404, b"")


def test_a_link_to_the_page_may_be_followed() -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert ask(f"/{TOKEN}/", **link, sec_fetch_dest="document")[0] == 200
    assert ask(f"/{TOKEN}/", **link, sec_fetch_dest="iframe")[0] == 404
    assert ask("/", **link, sec_fetch_dest="document")[0] == 404


def test_our_own_page_may_post() -> None:
    assert ask(f"/{TOKEN}/job/a/cancel", origin="http://127.0.0.1:6070", sec_fetch_site="same-origin")[0] == 200
