"""Models that are wrapped for a GPU although nothing moved them there."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.memory import ClassValue, Container, External, Record
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.placed import may_place_parameters

MOVES = ("to", "cuda")
_DEEPEST = 6


class OnCpu(NamedTuple):
    """A wrapper that is made for GPUs, of a model that nothing moved there."""

    call: ast.Call
    module: Module


@dataclass
class Places:
    """Wrappers of models that no branch moved."""

    on_cpu: list[OnCpu] = field(default_factory=list)

    def move(self, owner: Any) -> None:
        for one in _parts(owner):
            one.is_moved = True

    def wrap(self, call: ast.Call, module: Module, args: list[Any], keywords: dict[str, Any]) -> None:
        """Remember a wrapper for certain devices, if its model surely is on the CPU."""
        model = args[0] if args else keywords.get("module")
        devices = args[1] if len(args) > 1 else keywords.get("device_ids")
        is_for_gpu = isinstance(devices, Container) and isinstance(devices.content, list) and bool(devices.content)
        parts = _parts(model)
        is_on_cpu = all(not one.is_moved and _is_made_on_cpu(one) for one in parts)
        if is_for_gpu and parts and is_on_cpu:
            self.on_cpu.append(OnCpu(call, module))


def _parts(model: Any, depth: int = 0) -> list[Record]:
    """Return a model of a class of the program, or of torchvision, and the models in it."""
    if not isinstance(model, Record) or depth > _DEEPEST:
        return []
    if isinstance(model.kind, External):
        return [model] if model.kind.name.startswith("torchvision.models.") else []
    return [model, *(part for value in list(model.content.values()) for part in _parts(value, depth + 1))]


def _is_made_on_cpu(model: Record) -> bool:
    classes = model.kind.line() if isinstance(model.kind, ClassValue) else []
    return not may_place_parameters(*(one.node for one in classes))
