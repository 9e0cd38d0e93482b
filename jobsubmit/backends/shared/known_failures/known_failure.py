"""One known failure: how jobsubmit recognises it, what it means, and what to do."""

from __future__ import annotations

from typing import NamedTuple


class KnownFailure(NamedTuple):
    """The pattern of its last lines, its meaning and a hint; `{0}`, `{1}` … in the texts are the pattern's groups."""

    pattern: str
    meaning: str
    hint: str
