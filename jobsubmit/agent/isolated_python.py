"""How a Python process of ours starts: it imports nothing from the current folder, PYTHONPATH or PYTHONSTARTUP."""

from __future__ import annotations

import os
import sys

_START = (
    "import sys; agent = sys.modules['agent'] = type(sys)('agent'); agent.__path__ = [sys.argv.pop(1)]; "
    "sys.exit(__import__('agent.' + sys.argv.pop(1), fromlist=['main']).main())"
)


def isolated(*arguments: str) -> list[str]:
    """Return the command that starts this Python with the standard library only."""
    return [sys.executable, "-I", "-S", *arguments]


def agent_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main` of a module of this agent; it can import nothing else of jobsubmit."""
    return isolated("-c", _START, os.path.dirname(os.path.abspath(__file__)), module, *arguments)
