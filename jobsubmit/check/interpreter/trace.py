"""What was seen while a program was followed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from jobsubmit.check.program.operations import UNKNOWN


@dataclass(frozen=True)
class Observed:
    """The values of expressions, UNKNOWN where they differ, and the whole names of what calls call.

    `entered` are the functions that were followed.
    """

    values: Mapping[ast.AST, Any] = field(default_factory=lambda: MappingProxyType({}))
    names: Mapping[ast.AST, str] = field(default_factory=lambda: MappingProxyType({}))
    entered: frozenset[ast.AST] = frozenset()


@dataclass
class Trace:
    """The same while it grows; `size` says how much was seen."""

    values: dict[ast.AST, Any] = field(default_factory=dict)
    callees: dict[ast.AST, set[str]] = field(default_factory=dict)
    entered: set[ast.AST] = field(default_factory=set)

    @property
    def size(self) -> int:
        return len(self.values)

    def see(self, node: ast.AST, value: Any) -> None:
        """Remember the value that an expression has once more."""
        if node not in self.values:
            self.values[node] = value
            return
        before = self.values[node]
        if before is not UNKNOWN and not (type(before) is type(value) and before == value):
            self.values[node] = UNKNOWN

    def call(self, node: ast.AST, name: str) -> None:
        """Remember what an expression calls."""
        self.callees.setdefault(node, set()).add(name)

    def forget_after(self, size: int) -> None:
        """Forget the values of expressions that were not seen before the trace had a size."""
        for node in list(self.values)[size:]:
            del self.values[node]

    def finished(self) -> Observed:
        """Return all that is clear: one value of an expression, one name for what is called."""
        known = {node: value for node, value in self.values.items() if value is not UNKNOWN}
        names = {node: next(iter(found)) for node, found in self.callees.items() if len(found) == 1}
        return Observed(known, names, frozenset(self.entered))
