"""Calls that wait for somebody to type: a job has no terminal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding, Level

_ANSWERED = ("input", "getpass.getpass")
_ASKS = (*_ANSWERED, "breakpoint", "pdb.set_trace", "ipdb.set_trace", "IPython.embed")
_NUMBERS = ("int", "float")


def check_interactive(code: Code) -> Iterator[Finding]:
    """Yield the first call that asks at the terminal: an error where it is surely reached.

    A debugger that is started in a branch is often left for what never happens: that is a hint.
    """
    for module, call, name in code.reached.calls:
        is_stop = name not in _ANSWERED
        if name in _ASKS and all(
            (is_stop and _goes_on(one)) or _is_entered(code, one, module) for one in _handlers(call, module)
        ):
            yield Finding(
                _level(code, call, module, is_stop=is_stop),
                "no-terminal",
                module.where(call),
                f"{name}() waits for input, and a job has no terminal: it would fail",
                "remove it, or take the answer from an argument",
            )
            return


def _level(code: Code, call: ast.Call, module: Module, *, is_stop: bool) -> Level:
    if code.reached.is_sure(call, module) and not _handlers(call, module):
        return "error"
    is_chosen = any(isinstance(above, ast.If) for above in module.above(call))
    return "hint" if is_stop and is_chosen else "warning"


def _handlers(call: ast.Call, module: Module) -> list[ast.ExceptHandler]:
    return [above for above in module.above(call) if isinstance(above, ast.ExceptHandler)]


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Return whether an error is expected: the program sets something in its place, and goes on."""
    return isinstance(handler.body[-1], (ast.Assign, ast.AugAssign)) and handler.type is not None


def _is_entered(code: Code, handler: ast.ExceptHandler, module: Module) -> bool:
    """Return whether a handler is surely entered: `int("latest")` raises ValueError."""
    tried = module.parents.get(handler)
    if not isinstance(tried, ast.Try) or spelled(handler.type or handler) != "ValueError":
        return False
    calls = (node for one in tried.body for node in walk(one) if isinstance(node, ast.Call) and node.args)
    texts = (code.values.of(node.args[0], module) for node in calls if spelled(node.func) in _NUMBERS)
    return any(isinstance(text, str) and not re.search(r"\d|inf|nan", text, re.IGNORECASE) for text in texts)
