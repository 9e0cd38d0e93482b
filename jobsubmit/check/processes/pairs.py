"""What pairs of followed processes have in common."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.program.module import FUNCTIONS, Module
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk


def both(one: Followed, other: Followed, name: str) -> Iterator[tuple[Event, Event]]:
    """Yield the calls by the last part of a name that both of two processes surely make."""
    for path, event in one.events.items():
        second = other.events.get(path)
        if event.last == name and second is not None and event.is_sure and second.is_sure:
            yield event, second


def tests_around(node: ast.AST, module: Module) -> Iterator[ast.expr]:
    """Yield the conditions around a node in its function."""
    for above in module.above(node):
        if isinstance(above, FUNCTIONS):
            return
        if isinstance(above, (ast.If, ast.IfExp, ast.While)):
            yield above.test


def are_parted(node: ast.AST, module: Module, one: Followed, other: Followed) -> bool:
    """Return whether values part two processes around a node, not only that less is known of the one that is there."""
    parts = [part for test in tests_around(node, module) for part in walk(test) if isinstance(part, ast.expr)]
    known = [(one.values.get(part, UNKNOWN), other.values.get(part, UNKNOWN)) for part in parts]
    is_less_known = any(own is UNKNOWN and second is not UNKNOWN for own, second in known)
    return not is_less_known or any(UNKNOWN not in (own, second) and own != second for own, second in known)
