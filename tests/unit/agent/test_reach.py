"""Whether another host can be reached: a link that has just come up again is not taken for a closed one."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jobsubmit.agent.preflight import reach


@pytest.fixture
def greeting_port() -> Iterator[int]:
    """Yield a port of this machine that greets as the first host of a job does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.send(b"jobsubmit\n")

        threading.Thread(target=greet, daemon=True).start()
        yield listener.getsockname()[1]


def without_route(monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    """Let the first tries to connect find no route, as the kernel answers until a neighbour has replied."""
    connect, left = socket.create_connection, iter(range(tries))

    def create_connection(*arguments: Any, **options: Any) -> socket.socket:
        if next(left, None) is not None:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        return connect(*arguments, **options)

    monkeypatch.setattr(socket, "create_connection", create_connection)


def test_a_link_that_has_just_come_up_is_tried_again(monkeypatch: pytest.MonkeyPatch, greeting_port: int) -> None:
    without_route(monkeypatch, tries=3)
    assert reach.try_ports(["127.0.0.1"], [greeting_port]) == {"problems": {"127.0.0.1": ""}}


def test_a_route_that_stays_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_CONNECT_SECONDS", 0.5)
    without_route(monkeypatch, tries=1000)
    problems = reach.try_ports(["127.0.0.1"], [23000])["problems"]
    assert problems == {"127.0.0.1": "port 23000: No route to host"}
