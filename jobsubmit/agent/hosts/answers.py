"""How a host reads a question, and how it answers: one line of JSON, and then bytes."""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    Answer = dict[str, Any]


class Payload:
    """The bytes that belong to a question; `stream` is what they are read from."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.left = stream, size

    def read(self, most: int | None = None) -> bytes:
        """Return as many bytes, or all that are left; fewer where the input ends."""
        data = self.stream.read(self.left if most is None else min(most, self.left))
        self.left -= len(data)
        return data


def say(answer: Answer) -> None:
    """Send an answer."""
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()
