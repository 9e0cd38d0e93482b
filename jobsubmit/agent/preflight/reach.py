"""Whether other hosts reach this one on the ports of a job, tried with real connections."""

from __future__ import annotations

import errno
import select
import socket
import time

from ..supervisor import network

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

_LISTEN_SECONDS, _CONNECT_SECONDS, _RETRY_SECONDS = 30.0, 2.0, 0.25
_GREETING = b"jobsubmit\n"


def listen(places: list[str], seeds: list[str], say: Callable[[dict[str, Any]], None], stream: BinaryIO) -> None:
    """Listen at some addresses of this host, at the ports that a job with these seeds would take.

    Says the ports, and answers each connection until the input ends, for some seconds at most.
    """
    leases = [network.lease_port(seed) for seed in seeds]
    ports = [port for port, _ in leases]
    listeners, problems = [], {}
    for address in places:
        for port in ports:
            listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                listener.listen(64)
                listeners.append(listener)
            except OSError as error:
                problems[address] = error.strerror or str(error)
                listener.close()
    say({"ports": ports, "problems": problems})
    deadline = time.monotonic() + _LISTEN_SECONDS
    while time.monotonic() < deadline:
        ready, _, _ = select.select([*(held.fileno() for held in listeners), stream.fileno()], [], [], 0.5)
        if stream.fileno() in ready:
            break
        for listener in listeners:
            if listener.fileno() in ready:
                connection, _ = listener.accept()
                with connection:
                    connection.setblocking(False)
                    connection.send(_GREETING)
    for held in [*listeners, *(lease for _, lease in leases)]:
        held.close()


def try_ports(places: list[str], ports: list[int]) -> dict[str, Any]:
    """Return the first problem with a connection to each address, on any of the ports; empty where all work."""
    return {"problems": {address: _try_all(address, ports) for address in places}}


def _try_all(address: str, ports: list[int]) -> str:
    for port in ports:
        try:
            with _connect(address, port) as connection:
                if connection.recv(len(_GREETING)) != _GREETING:
                    return "port %d: another program answers there" % port
        except OSError as error:
            return "port %d: %s" % (port, error.strerror or str(error))
    return ""


def _connect(address: str, port: int) -> socket.socket:
    """Connect to a port, also where the first tries find no route: so it is while a link comes up again."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            if error.errno != errno.EHOSTUNREACH or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)
