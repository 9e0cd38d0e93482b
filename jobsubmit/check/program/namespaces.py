"""The variables in which a program keeps the arguments that it has parsed."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.variables import Variable, variable_of


@dataclass(frozen=True)
class Namespaces:
    """Variables of these `names`, and fields such as `self.args`, hold the parsed arguments.

    The `others` have such a name too, but hold something else. `more` are single variables that hold the arguments,
    whatever others of their name hold.
    """

    names: frozenset[str] = frozenset()
    others: frozenset[Variable] = frozenset()
    more: frozenset[Variable] = frozenset()

    def hold(self, node: ast.AST, module: Module) -> bool:
        """Return whether an expression is a variable, or a field, that holds the parsed arguments."""
        if not isinstance(node, ast.Name):
            return isinstance(node, ast.Attribute) and spelled(node) in self.names
        variable = variable_of(node, module)
        return variable in self.more or (node.id in self.names and variable not in self.others)

    def with_self(self) -> Namespaces:
        """Return them, and the object whose method it is."""
        return replace(self, names=self.names | {"self"})
