"""Scripts whose variables a configurator sets by the arguments: `exec(open("configurator.py").read())` of nanoGPT."""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from jobsubmit.check.program.module import Module, spelled

if TYPE_CHECKING:
    from jobsubmit.check.program.program import Program

_MARKS = ("sys.argv", "globals()[")


@lru_cache(maxsize=1000)
def configurator_of(program: Program, module: Module) -> ast.Call | None:
    """Return the call that executes a configurator, if that is all that sets variables of a module indirectly."""
    calls = [call for call in module.of(ast.Call) if spelled(call.func) in ("exec", "globals", "setattr")]
    executed = [call for call in calls if spelled(call.func) == "exec"]
    sets = [call for call in calls if isinstance(getattr(module.parents.get(call), "ctx", None), ast.Store)]
    if len(executed) != 1 or sets or any(spelled(call.func) == "setattr" for call in calls):
        return None
    path = _path_read(executed[0])
    with suppress(OSError):
        source = program.file(path, program.sources) if path else ""
        text = Path(source).read_text(errors="replace") if source else ""
        return executed[0] if all(mark in text for mark in _MARKS) else None
    return None


def _path_read(call: ast.Call) -> str:
    """Return the file of `exec(open("configurator.py").read())`, empty if it is not written like this."""
    match call.args:
        case [ast.Call(func=ast.Attribute(value=ast.Call(args=[ast.Constant(value=str(path)), *_]) as opened))]:
            return path if spelled(opened.func) == "open" else ""
    return ""
