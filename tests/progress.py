"""Run a command that takes minutes, and show that it goes on: `python tests/progress.py "installing torch" pip …`.

A terminal gets one line that changes, a log a line every 15 seconds: what is done, since when, and what the command
said last. Where it fails, the end of what it said is printed. The exit code is the command's own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque

_EVERY_SECONDS = {True: 1.0, False: 15.0}  # on a terminal, in a log
_WIDTH = 100
_LAST_LINES = 60


def run(what: str, command: list[str]) -> int:
    """Run a command to its end; return its exit code."""
    is_terminal = sys.stderr.isatty()
    began, lines = time.monotonic(), deque([""], maxlen=_LAST_LINES)
    show(f"{what} …", is_terminal=is_terminal)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    reader = threading.Thread(target=_read, args=(process, lines))
    reader.start()
    while reader.is_alive():
        reader.join(_EVERY_SECONDS[is_terminal])
        if reader.is_alive():
            last = lines[-1].strip()[:_WIDTH]
            show(f"{what}: {time.monotonic() - began:.0f} s  {last}", is_terminal=is_terminal)
    code = process.wait()
    show(f"{what}: {'done' if code == 0 else 'failed'} after {time.monotonic() - began:.0f} s", is_terminal=is_terminal)
    if is_terminal:
        print(file=sys.stderr)
    if code != 0:
        print("\n".join(lines), file=sys.stderr)
    return code


def show(text: str, *, is_terminal: bool) -> None:
    """Replace the line on a terminal, add one to a log."""
    print(f"\r\x1b[K{text}" if is_terminal else text, end="" if is_terminal else "\n", file=sys.stderr, flush=True)


def _read(process: subprocess.Popen[str], lines: deque[str]) -> None:
    assert process.stdout
    for line in process.stdout:
        if line.strip():
            lines.append(line.rstrip())


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
