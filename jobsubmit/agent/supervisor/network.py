"""A rendezvous port of its own for each job, and an address of its own for each node."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable

_NODES_PER_BLOCK = 99
_PORTS = range(20000, 30000)  # below the range that outgoing connections take theirs from


def lease_port(seed: str) -> tuple[int, socket.socket]:
    """Return (port, socket): no other job gets the port while the socket is open, and torch can still listen on it.

    The socket is bound without SO_REUSEADDR, so that a second lease of the port fails. The option is set afterwards, so
    that the job's own store can bind to the port. The socket never listens.
    """
    start = random.Random(seed).randrange(len(_PORTS))
    for step in range(len(_PORTS)):
        port = _PORTS[(start + step) % len(_PORTS)]
        held = _bind_everywhere(port)
        if held is not None:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return port, held
    raise OSError(errno.EADDRINUSE, "no free port in %d-%d" % (_PORTS[0], _PORTS[-1]))


def watch_seed(job_id: str) -> str:
    """Return the seed of the port at which host 0 listens for the other hosts."""
    return job_id + "/hosts"


def _bind_everywhere(port: int) -> socket.socket | None:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - it never listens
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.bind((address, port))
            return held
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE:
                return None
    return None


def node_addresses(nodes: int, usable: Callable[[str], bool] | None = None) -> list[str]:
    """Return a loopback address per node, from 127.0.0.101, in an order that also sorts as text.

    If only 127.0.0.1 exists (macOS), all nodes share it.
    """
    usable = usable or _usable
    wanted = ["127.0.%d.%d" % _last_parts(index) for index in range(nodes)]
    return wanted if all(usable(address) for address in (wanted[0], wanted[-1])) else ["127.0.0.1"] * nodes


def _last_parts(index: int) -> tuple[int, int]:
    """Return the last two parts of the address of a node: 99 nodes to a block, always three digits."""
    block, place = divmod(index, _NODES_PER_BLOCK)
    return (100 + block if block else 0), 101 + place


def _usable(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def loopback_interface() -> str:
    """Return the name of the loopback interface; empty if it has an unusual name."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "")
