"""What belongs to which tier: `make check` (unit, golden), `make test` (all that is not slow), `make test-all`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]


def slow(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - pytest's name
    """Return the values of a test's parameters that run in `make test-all` only."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def is_fast(item: pytest.Item) -> bool:
    """Tell whether a test belongs to `make check`: it starts no server, no job and few processes."""
    return item.path.relative_to(TESTS).parts[0] in ("unit", "golden")


def mark(item: pytest.Item) -> None:
    """Mark a test by the folder it lies in."""
    if not is_fast(item):
        item.add_marker(pytest.mark.integration)
    if item.path.is_relative_to(TESTS / "slow"):
        item.add_marker(pytest.mark.slow)
