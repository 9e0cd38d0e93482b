"""How a Python process of ours starts: it imports nothing from the current folder, PYTHONPATH or PYTHONSTARTUP."""

from __future__ import annotations

import sys


def isolated(*arguments: str) -> list[str]:
    """Return the words that start this Python with the standard library only."""
    return [sys.executable, "-I", "-S", *arguments]
