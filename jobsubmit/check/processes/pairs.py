"""What pairs of followed processes have in common."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import Code
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.program.module import Module


def whole(followed: Sequence[Followed]) -> list[Followed]:
    """Return the processes that were followed to their ends, if all of them were."""
    return list(followed) if all(one.is_whole for one in followed) else []


def both(one: Followed, other: Followed, name: str) -> Iterator[tuple[Event, Event]]:
    """Yield the calls by the last part of a name that both of two processes surely make."""
    for path, event in one.events.items():
        second = other.events.get(path)
        if event.last == name and second is not None and event.is_sure and second.is_sure:
            yield event, second


def module_of(code: Code, node: ast.AST, event: Event) -> Module:
    """Return the module that a call which leads to an event is in: that of the event, where it is in a text."""
    return next((module for module in code.program.modules.values() if node in module.parents), event.module)
