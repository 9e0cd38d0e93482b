"""When a request is retried, and how long to wait before: one policy for client and agent."""

from __future__ import annotations

PASSING_STATUSES = (408, 429, 500, 502, 503, 504)  # HTTP: too slow, too many, or the server's own trouble
_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 600.0


def pause_before(retry: int, first: float = _FIRST_SECONDS) -> float:
    """Return the seconds to wait before a retry, the first being 1: twice as long each time."""
    return float(min(first * 2 ** (retry - 1), _LONGEST_SECONDS))
