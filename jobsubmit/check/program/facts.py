"""What the processes of a job get from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.spec.modes import Start


@dataclass(frozen=True)
class Facts:
    """What the processes of a job get from it.

    `environment` maps a variable to its value, to UNKNOWN where that is not known, to Several where it differs, and to
    None where it is not set; `argv` are the words after the boot file. `gpus` is per node, None if it is not known.
    `rank` is that of a process among all; `options_of_node` are options that a command gives the number of the node.
    """

    mode: Start
    nodes: int
    nproc: int | None
    gpus: int | None
    environment: Mapping[str, Any]
    argv: tuple[str, ...]
    rank: Any = UNKNOWN
    options_of_node: frozenset[str] = frozenset()

    @property
    def has_launcher(self) -> bool:
        """Return whether one of torch's launchers starts the processes, and gives each its ranks."""
        return self.mode in ("launch", "torchrun")
