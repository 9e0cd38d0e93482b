"""Messages between the agents of a job's hosts: JSON lines over TCP, each with a proof that its sender knows the key.

The side that listens sends a random line first. A proof covers that line, the direction and the number of the message,
so that no message can be invented, changed, repeated or left out. The content is not secret: it holds no keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import time

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..protocol import HostMessage

_LONGEST_LINE, _LONGEST_FROM_STRANGER = 8 << 20, 64 << 10  # bytes
_LONGEST_GREETING = 64
_BLOCK, _BLOCKS_AT_ONCE = 1 << 16, 64


class Channel:
    """One connection. It never blocks; `is_over` shows that the other side is gone, or is not what it claims to be."""

    def __init__(self, connection: socket.socket, key: str, *, is_listener: bool) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.key, self.is_listener = connection, key.encode(), is_listener
        self.nonce = os.urandom(16).hex().encode() if is_listener else b""
        self.sent = self.received = 0
        self.outgoing, self.incoming = self.nonce + b"\n" if is_listener else b"", b""
        self.waiting = []  # type: list[HostMessage] # until the random line is here
        self.heard_at = time.monotonic()
        self.is_over = False

    def send(self, message: HostMessage) -> None:
        """Queue a message, and send as much as fits."""
        if not self.nonce:
            self.waiting.append(message)
            return
        data = json.dumps(message).encode()
        self.outgoing += self._proof(data, self.sent, by_listener=self.is_listener) + b" " + data + b"\n"
        self.sent += 1
        self.flush()

    def flush(self) -> None:
        """Send what is queued, as far as the connection takes it."""
        try:
            while self.outgoing and not self.is_over:
                count = self.socket.send(self.outgoing[:_BLOCK])
                self.outgoing = self.outgoing[count:]
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True

    def receive(self) -> list[HostMessage]:
        """Return the messages that have arrived."""
        self.flush()
        found = []  # type: list[HostMessage]
        for line in self._lines():
            if not self.nonce:
                self._take_greeting(line)
                continue
            message = self._proven(line)
            if message is None:
                self.is_over = True
                break
            found.append(message)
        return found

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines that have arrived whole, a bounded number of them; a line that is too long ends it all."""
        for _ in range(_BLOCKS_AT_ONCE):
            try:
                block = self.socket.recv(_BLOCK)
            except BlockingIOError:
                return
            except OSError:
                block = b""
            *lines, self.incoming = (self.incoming + block).split(b"\n")
            yield from lines
            longest = _LONGEST_LINE if self.received else _LONGEST_FROM_STRANGER
            if not block or len(self.incoming) > longest:
                self.is_over = True
            if self.is_over:
                return

    def close(self) -> None:
        """Close the connection."""
        self.is_over = True
        self.socket.close()

    def _take_greeting(self, line: bytes) -> None:
        if not line or len(line) > _LONGEST_GREETING:
            self.is_over = True
            return
        self.nonce = line
        for message in self.waiting:
            self.send(message)
        self.waiting.clear()

    def _proven(self, line: bytes) -> HostMessage | None:
        proof, _, data = line.partition(b" ")
        if not hmac.compare_digest(proof, self._proof(data, self.received, by_listener=not self.is_listener)):
            return None
        self.received += 1
        self.heard_at = time.monotonic()
        message = json.loads(data)
        return message if isinstance(message, dict) else None  # type: ignore[return-value] # whoever has the key is one of us

    def _proof(self, data: bytes, number: int, *, by_listener: bool) -> bytes:
        text = b"%s %d %d %s" % (self.nonce, by_listener, number, data)
        return hmac.new(self.key, text, hashlib.sha256).hexdigest().encode()
