"""What pairs of followed processes have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.interpreter.trace import Event


def whole(followed: Sequence[Followed]) -> list[Followed]:
    """Return the processes that were followed to their ends, if all of them were."""
    return list(followed) if all(one.is_whole for one in followed) else []


def both(one: Followed, other: Followed, name: str) -> Iterator[tuple[Event, Event]]:
    """Yield the calls by the last part of a name that both of two processes surely make."""
    for path, event in one.events.items():
        second = other.events.get(path)
        if event.last == name and second is not None and event.is_sure and second.is_sure:
            yield event, second


def is_number(value: Any) -> bool:
    """Return whether a value is an integer, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)
