"""How a job can be started: the names of the modes, without the models of their fields."""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["spawn", "launch", "torchrun"]
Start: TypeAlias = Literal["spawn", "launch", "torchrun", "command"]

MODES: tuple[Mode, ...] = ("spawn", "launch", "torchrun")
