"""Which models of a program were moved to a GPU, and which are wrapped for one without that."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.memory import ClassValue, Container, Record
from jobsubmit.check.program.module import Module, unparsed

MOVES = ("to", "cuda")
_DEEPEST = 6
# What may put parameters elsewhere than on the CPU when they are made.
_PLACES = re.compile(r"\.cuda\(|\.to\(|\bdevice\b|to_device|from_pretrained")


class OnCpu(NamedTuple):
    """A wrapper that is made for GPUs, of a model that nothing moved there."""

    call: ast.Call
    module: Module


@dataclass
class Places:
    """The models that were moved, in any branch, and wrappers of models that were not."""

    moved: list[Record] = field(default_factory=list)
    on_cpu: list[OnCpu] = field(default_factory=list)

    def move(self, owner: Any) -> None:
        self.moved += [one for one in _parts(owner) if not self._is_moved(one)]

    def wrap(self, call: ast.Call, module: Module, args: list[Any], keywords: dict[str, Any]) -> None:
        """Remember a wrapper for certain devices, if its model surely is on the CPU."""
        model = args[0] if args else keywords.get("module")
        devices = args[1] if len(args) > 1 else keywords.get("device_ids")
        is_for_gpu = isinstance(devices, Container) and isinstance(devices.content, list) and bool(devices.content)
        parts = _parts(model)
        is_on_cpu = not any(map(self._is_moved, parts)) and all(map(_is_made_on_cpu, parts))
        if is_for_gpu and parts and is_on_cpu:
            self.on_cpu.append(OnCpu(call, module))

    def _is_moved(self, model: Record) -> bool:
        return any(one is model for one in self.moved)


def _parts(model: Any, depth: int = 0) -> list[Record]:
    """Return a model of a class of the program, and the models in it."""
    if not isinstance(model, Record) or not isinstance(model.kind, ClassValue) or depth > _DEEPEST:
        return []
    return [model, *(part for value in list(model.content.values()) for part in _parts(value, depth + 1))]


def _is_made_on_cpu(model: Record) -> bool:
    classes = model.kind.line() if isinstance(model.kind, ClassValue) else []
    return not any(_PLACES.search(unparsed(one.node)) for one in classes)
