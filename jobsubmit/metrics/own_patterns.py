"""The patterns with which a job file names its own metrics: `metrics: {loss: 'train=([0-9.]+)'}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jobsubmit.metrics.template import strip_colours, value_of

COUNTERS = ("step", "steps", "epoch", "epochs")
"""Names that count the progress of the training, and their totals, rather than a metric."""


class OwnPatterns:
    """Finds the values of names by regular expressions; the first group of each contains the number."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = {name: re.compile(pattern) for name, pattern in patterns.items()}
        self.names = frozenset(patterns)

    def read(self, text: str) -> dict[str, float]:
        """Return the values that a line has, by name; what is not a number is left out."""
        if not self._patterns:
            return {}
        text = strip_colours(text)
        found = {}
        for name, pattern in self._patterns.items():
            match = pattern.search(text)
            value = _number(match.group(1)) if match and match.group(1) else None
            if value is not None:
                found[name] = value
        return found


def _number(text: str) -> float | None:
    try:
        return value_of(text.strip())
    except ValueError:
        return None
