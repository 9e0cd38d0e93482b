"""Run a command that takes minutes, and show that it goes on: `progress.py "installing torch" pip …`.

A terminal gets one line that changes, a log a line every 15 seconds: what is done, for how long, and the last line of
the command's output. If it fails, the end of its output is printed. The exit code is the command's own.

JOBSUBMIT_PROGRESS=log makes a log of a terminal, where something else writes to it, too. Commands of one environment
wait for each other: two of pip or apt cannot run side by side.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

_EVERY_SECONDS = {True: 1.0, False: 15.0}  # on a terminal, in a log
_WIDTH = 120  # of a line in a log
_LAST_LINES = 60


def run(what: str, command: list[str]) -> int:
    """Run a command to its end; return its exit code."""
    is_terminal = sys.stderr.isatty() and os.environ.get("JOBSUBMIT_PROGRESS") != "log"
    began, lines = time.monotonic(), deque([""], maxlen=_LAST_LINES)
    show(f"{what} …", is_terminal=is_terminal)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    reader = threading.Thread(target=_read, args=(process, lines))
    reader.start()
    while reader.is_alive():
        reader.join(_EVERY_SECONDS[is_terminal])
        if reader.is_alive():
            show(f"{what}: {time.monotonic() - began:.0f} s  {lines[-1].strip()}", is_terminal=is_terminal)
    code = process.wait()
    show(f"{what}: {'done' if code == 0 else 'failed'} after {time.monotonic() - began:.0f} s", is_terminal=is_terminal)
    if is_terminal:
        print(file=sys.stderr)
    if code != 0:
        print("\n".join(lines), file=sys.stderr)
    return code


def show(text: str, *, is_terminal: bool) -> None:
    """Replace the line on a terminal, add one to a log."""
    text = text[: shutil.get_terminal_size().columns - 1 if is_terminal else _WIDTH]
    print(f"\r\x1b[K{text}" if is_terminal else text, end="" if is_terminal else "\n", file=sys.stderr, flush=True)


def _read(process: subprocess.Popen[str], lines: deque[str]) -> None:
    assert process.stdout
    for line in process.stdout:
        if line.strip():
            lines.append(line.rstrip())


if __name__ == "__main__":
    with (Path(sys.prefix) / "provisioning.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sys.exit(run(sys.argv[1], sys.argv[2:]))
