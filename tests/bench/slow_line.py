"""A TCP line to a loopback server that takes its time: every byte arrives half a round trip later."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


class _Half(asyncio.Protocol):
    """Carry what one side says to the other, late but in order."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.other: _Half | None = None
        self.transport: Any = None
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self.delay, self._carry, data)

    def _carry(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            asyncio.get_running_loop().call_later(self.delay, self.other.transport.close)


class _Client(_Half):
    def __init__(self, delay: float, port: int) -> None:
        super().__init__(delay)
        self.port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        _, server = await asyncio.get_running_loop().create_connection(
            lambda: _Half(self.delay), "127.0.0.1", self.port
        )
        server.other, self.other = self, server
        for data in self.waiting:
            server.transport.write(data)


async def main(port: int, round_trip: float) -> None:
    """Listen on a free port, print it, and carry until killed."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: _Client(round_trip / 2, port), "127.0.0.1", 0, backlog=512)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
