"""Tolerate transient polling errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from jobsubmit.errors import BackendError

T = TypeVar("T")

_LONGEST_SECONDS = 60.0


class TolerantPoll:
    """Poll a platform; once it has answered, tolerate transient errors for up to a minute."""

    def __init__(self, *, has_answered: bool = False) -> None:
        self.has_answered = has_answered
        self.failing_since: float | None = None

    def ask(self, question: Callable[[], T]) -> T | None:
        """Return the answer, or None after a tolerated error. Raises every other error."""
        try:
            answer = question()
        except BackendError as error:
            self.failing_since = self.failing_since or time.monotonic()
            is_tolerated = self.has_answered and error.may_pass
            if not is_tolerated or time.monotonic() - self.failing_since > _LONGEST_SECONDS:
                raise
            return None
        self.has_answered, self.failing_since = True, None
        return answer


def tolerate_errors(look: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that polls a platform which has answered before; a tolerated error counts as True."""
    poll = TolerantPoll(has_answered=True)
    return lambda: poll.ask(look) is not False
