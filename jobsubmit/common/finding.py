"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

IGNORED = "ignored"  # the check that is about a field which changes what runs, and which the backend does not read
BUNDLE_LIMIT = "bundle-limit"  # the check that is about how much is uploaded

Level: TypeAlias = Literal["error", "warning", "hint", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of a check. An error stops the submission; `unknown` is what the check cannot determine, and why."""

    level: Level
    check: str
    where: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}  {self.text}"
