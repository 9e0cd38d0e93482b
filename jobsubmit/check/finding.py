"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Say what a check found: an error stops the submission, a warning does not."""

    level: Level
    where: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}  {self.text}"
