"""A process whose store is elsewhere connects as soon as the store listens, and is not delayed if none ever does."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from jobsubmit.agent import early_store


class Store:
    """What torch's TCPStore is to the agent: it connects at once, or sleeps for a second."""

    def __init__(self, host_name: str, port: int, world_size: int = 2, is_master: bool = False, **_: Any) -> None:
        self.is_master = is_master
        self.is_late = False
        if not is_master:
            try:
                socket.create_connection((host_name, port), 1).close()
            except (OSError, ValueError):
                self.is_late = True


@pytest.fixture
def module() -> Any:
    found = SimpleNamespace(TCPStore=type("TCPStore", (Store,), {}))
    early_store.watch_stores(found)  # type: ignore[arg-type]
    return found


def test_a_store_that_listens_later_is_waited_for(module: Any) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        listening = threading.Timer(0.3, server.listen)
        listening.start()
        try:
            assert not module.TCPStore("127.0.0.1", server.getsockname()[1]).is_late
            assert not module.TCPStore(port=server.getsockname()[1], host_name="127.0.0.1", world_size=2).is_late
        finally:
            listening.join()


def test_a_server_does_not_wait_for_itself(module: Any) -> None:
    begun = time.monotonic()
    assert module.TCPStore("127.0.0.1", 1, 2, True).is_master
    assert module.TCPStore("127.0.0.1", 1, is_master=True).is_master
    assert time.monotonic() - begun < early_store._LONGEST_SECONDS / 2


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "", "a" * 300])
def test_what_never_listens_is_left_to_torch(module: Any, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_store, "_LONGEST_SECONDS", 0.1)
    assert module.TCPStore(host, 1).is_late
