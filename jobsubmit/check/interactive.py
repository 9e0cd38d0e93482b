"""Calls that wait for somebody to type: a job has no terminal."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.common.finding import Finding

_ASKS = ("input", "getpass.getpass", "breakpoint", "pdb.set_trace", "ipdb.set_trace", "IPython.embed")


def check_interactive(code: Code) -> Iterator[Finding]:
    """Yield the first call that asks at the terminal: an error where it is surely reached."""
    for module, call, name in code.reached.calls:
        if name in _ASKS and not any(isinstance(above, ast.ExceptHandler) for above in module.above(call)):
            yield Finding(
                code.level_of(call, module),
                "no-terminal",
                module.where(call),
                f"{name}() waits for input, and a job has no terminal: it would fail",
                "remove it, or take the answer from an argument",
            )
            return
