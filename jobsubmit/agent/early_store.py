"""Connect to a key-value store of torch as soon as it listens.

If the store does not listen yet, torch sleeps before it tries again, longer each time: 0.2 to 1.5 s are lost (measured
with torch 2.15). The processes of a job start at the same moment, so half of all starts would lose that time. A process
whose store is elsewhere looks every few milliseconds instead, and leaves all the rest to torch.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MODULE = "torch.distributed.rendezvous"  # every torch has the class there, whoever makes a store
_PAUSE_SECONDS, _ANSWER_SECONDS = 0.01, 1.0
_LONGEST_SECONDS = 10.0  # after that, what torch sleeps hardly matters
_PARAMETERS = ("host_name", "port", "world_size", "is_master")


def watch_stores(module: ModuleType) -> None:
    """Make each new TCPStore of the module wait for its server first, unless it is the server itself."""
    make = module.TCPStore.__init__

    def make_when_there(self: object, *args: Any, **kwargs: Any) -> None:
        given = {**kwargs, **dict(zip(_PARAMETERS, args))}
        if not given.get("is_master") and "host_name" in given and "port" in given:
            wait_until_it_listens(given["host_name"], given["port"])
        make(self, *args, **kwargs)

    module.TCPStore.__init__ = make_when_there


def wait_until_it_listens(host: str, port: int) -> None:
    """Return as soon as somebody listens there, or after a while. A name that nobody knows yet may come, too."""
    import socket  # torch has loaded it

    until = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < until:
        try:
            socket.create_connection((host, port), _ANSWER_SECONDS).close()
            return
        except (OSError, OverflowError, TypeError, ValueError):
            time.sleep(_PAUSE_SECONDS)
