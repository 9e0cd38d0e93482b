"""A small HTTP proxy between us and a real server, to look at every request and to break some of them."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO


@dataclass(frozen=True)
class Seen:
    """Describe a request; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def size(self) -> int:
        """Return the length of its body."""
        return int(self.headers.get("content-length", "0"))


@dataclass(frozen=True)
class Answer:
    """Answer instead of the server."""

    status: str
    code: str
    message: str = "made up by a test"


@dataclass(frozen=True)
class Reset:
    """Reset the connection after so many bytes of the body have been read."""

    after: int = 0


@dataclass(frozen=True)
class Stall:
    """Say nothing for so many seconds, then close."""

    seconds: float


@dataclass(frozen=True)
class Truncate:
    """Pass the request, and half of the body of its answer."""


Fault = Answer | Reset | Stall | Truncate


@dataclass
class Proxy:
    """Hold what was seen; `rule` says for each request what shall go wrong."""

    port: int
    seen: list[Seen] = field(default_factory=list)
    rule: Callable[[Seen], Fault | None] = lambda _: None
    endpoint: str = ""
    bytes_per_second: float = 0

    def serve(self, listener: socket.socket) -> None:
        """Take connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with (
            suppress(OSError, EOFError, ValueError),
            client,
            client.makefile("rb") as requests,
            socket.create_connection(("127.0.0.1", self.port)) as server,
            server.makefile("rb") as answers,
        ):
            while head := _read_head(requests):
                request = _parsed(head)
                self.seen.append(request)
                fault = self.rule(request)
                if "expect" in request.headers and not isinstance(fault, (Reset, Stall)):
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                if isinstance(fault, Reset):
                    requests.read(min(fault.after, request.size))
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                if isinstance(fault, Stall):
                    time.sleep(fault.seconds)
                    return
                if isinstance(fault, Answer):
                    requests.read(request.size)
                    client.sendall(_canned(fault))
                    continue
                kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")]
                server.sendall(b"\r\n".join(kept))
                _copy(requests, server, request.size, self.bytes_per_second)
                _relay(answers, client, request, cut=isinstance(fault, Truncate))
                if isinstance(fault, Truncate):
                    return


def _read_head(stream: BinaryIO) -> bytes:
    lines = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _parsed(head: bytes) -> Seen:
    first, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    return Seen(method, path, {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in rest})


def _canned(answer: Answer) -> bytes:
    body = f"<Error><Code>{answer.code}</Code><Message>{answer.message}</Message></Error>".encode() * bool(answer.code)
    return f"HTTP/1.1 {answer.status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _copy(source: BinaryIO, target: socket.socket, size: int, bytes_per_second: float = 0) -> None:
    while size > 0:
        block = source.read(min(size, 1 << 16))
        if not block:
            raise EOFError
        target.sendall(block)
        size -= len(block)
        if bytes_per_second:
            time.sleep(len(block) / bytes_per_second)


def _relay(answers: BinaryIO, client: socket.socket, request: Seen, *, cut: bool) -> None:
    head = _read_head(answers)
    if not head:
        raise EOFError
    client.sendall(head)
    status = head.split(b" ", 2)[1]
    headers = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in head.split(b"\r\n")[1:]}
    if request.method == "HEAD" or status in (b"204", b"304"):
        return
    if headers.get(b"transfer-encoding") == b"chunked":
        while size := int(line := answers.readline(), 16):
            client.sendall(line)
            _copy(answers, client, size + 2)
        client.sendall(line + answers.readline())
        return
    size = int(headers.get(b"content-length", b"0"))
    _copy(answers, client, size // 2 if cut else size)


@contextmanager
def in_front_of(endpoint: str) -> Iterator[Proxy]:
    """Run a proxy in front of a loopback server."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        proxy = Proxy(int(endpoint.rpartition(":")[2]))
        proxy.endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
