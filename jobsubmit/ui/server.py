"""Serve the pages on a loopback address until the user ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from jobsubmit.config import Settings
from jobsubmit.errors import UsageError
from jobsubmit.ui.app import build_app

USUAL_PORT = 6070
_ADDRESS = "127.0.0.1"


def listen(port: int | None) -> socket.socket:
    """Return a listening socket on a port, or without one on the usual port, else on a free one."""
    tried = (port,) if port is not None else (USUAL_PORT, 0)
    for number in tried:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((_ADDRESS, number))
            server.listen(128)
        except OSError as error:
            server.close()
            reason = error.strerror
            continue
        return server
    raise UsageError(f"--port {port}: {reason}", "choose another port, or leave it out: a free one is found")


def address_of(server: socket.socket, token: str, job_id: str = "") -> str:
    """Return the address of the pages, or of the page of a job."""
    return f"http://{_ADDRESS}:{server.getsockname()[1]}/{token}/{f'job/{job_id}' if job_id else ''}"


def serve(server: socket.socket, settings: Settings, token: str, *, version: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    app = build_app(settings, token, version=version)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )
    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        asyncio.run(uvicorn.Server(config).serve(sockets=[server]))


@contextlib.contextmanager
def opened(address: str) -> Iterator[None]:
    """Open an address in the user's browser.

    The browser is given a file that only the user can read: other users see the words of every command.
    """
    with tempfile.TemporaryDirectory(prefix="jobsubmit-ui-") as folder:
        page = Path(folder) / "open.html"
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={address}"><a href="{address}">jobsubmit</a>'
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        webbrowser.open(page.as_uri())
        yield
