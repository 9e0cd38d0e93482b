"""What a client asks a host for, over SSH, one question after the other.

A question is a line of JSON, {"command", "question", "size"}, and then `size` bytes. The answer is a line of JSON, and
then as many bytes as its "bytes" says. `listen` goes on until the next question; `lines` is the last one.

    facts               what the host is, and what it has
    listen              let other hosts connect to some ports, for a moment
    reach               try to connect to such ports
    missing, put        the code that the host does not have yet; receive it
    start               start the agent of a job
    look                what the agent of a job has written
    lines               the log lines of a job
    cancel, delete      end a job; remove it
    empty               remove the cache, unless a job runs

`root` is the host's folder, ~/.jobsubmit by default; a job is in jobs/ID/INDEX below it.
"""

from __future__ import annotations

import json
import signal
import sys

from ..hosts.answers import Payload, say
from ..preflight import facts

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from ..hosts.answers import Answer

_IDLE_SECONDS = 60
_FIRST, _LAST = "facts", "lines"


def serve(stream: BinaryIO, root: str) -> int:
    """Answer questions until the input ends, or none comes for some time; return the exit code."""
    while True:
        signal.alarm(_IDLE_SECONDS)
        line = stream.readline()
        signal.alarm(0)
        if not line.endswith(b"\n"):
            return 0
        asked = json.loads(line.decode())
        payload = Payload(stream, asked["size"])
        answer = _answer(asked["command"], root, asked["question"], payload)
        if answer is not None:
            say(answer)
        sys.stdout.flush()
        if asked["command"] == _LAST or payload.left:
            return 0  # what was not read of a payload is no question
        if asked["command"] == _FIRST:
            from ..hosts import commands, start  # noqa: F401 - while the client decides whether to start the job


def _answer(command: str, root: str, question: dict[str, Any], payload: Payload) -> Answer | None:
    try:
        if command == _FIRST:  # what it needs is loaded at once
            return facts.collect(root, question)
        from ..hosts.commands import COMMANDS

        return COMMANDS[command](root, question, payload)
    except (OSError, ValueError) as error:
        return {"error": str(error) or type(error).__name__}
