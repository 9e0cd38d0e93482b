"""Processes that start others, and what these are given to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import INIT, Code
from jobsubmit.check.interpreter.trace import Inner
from jobsubmit.check.program.calls import SPAWNS
from jobsubmit.common.finding import Finding


def check_nested(code: Code) -> Iterator[Finding]:
    """Yield an error where a process that a launcher started starts others, which join a group."""
    for event in (event for one in code.followed_all if one.is_nested for event in one.events.values()):
        starts = [call for call in event.path[:-1] if _last(call) == "Process"]
        if event.name == INIT and starts:
            yield Finding(
                "error" if event.is_sure else "warning",
                "nested-spawn",
                code.module_of(starts[0], event).where(starts[0]),
                f"Process would start more processes in each process that mode {code.facts.mode} starts",
                "use mode: spawn, or call the worker directly and read RANK and LOCAL_RANK from the environment",
            )
            return


def _last(call: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def check_pickling(code: Code) -> Iterator[Finding]:
    """Yield an error where mp.spawn gets a function inside another one, as a decorator may return."""
    for event in (event for one in code.followed_all for event in one.events.values() if event.name == SPAWNS[0]):
        function, method = event.argument("fn", 0), event.argument("start_method", 5, "spawn")
        if isinstance(function, Inner) and method == "spawn":
            yield Finding(
                "error" if event.is_sure else "warning",
                "not-picklable",
                event.module.where(event.call),
                f"mp.spawn is given {function.name}, a function inside another one: Python cannot send it to the "
                "processes, and none starts",
                "define it at the top level of the module, and pass what it needs in args",
            )
            return
