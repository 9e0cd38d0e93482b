"""By which power of the number of processes losses and gradients are too large, or too small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobsubmit.check.interpreter.memory import Container, Own, Record
from jobsubmit.check.interpreter.process import Process
from jobsubmit.check.interpreter.rehearsal import Update
from jobsubmit.check.program.module import Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN

_OF_WORLD = re.compile(r"world|size|replica|n_?gpus?\b|num_gpu|n_?procs?\b|num_proc|\bws\b", re.IGNORECASE)
_DIVIDES = frozenset(["div", "div_", "divide", "divide_", "true_divide", "true_divide_", "_foreach_div_"])
_MULTIPLIES = frozenset(["mul", "mul_", "multiply", "multiply_", "_foreach_mul_"])
_SUMS = frozenset(["all_reduce", "all_reduce_coalesced", "reduce_scatter_tensor"])


class Scaled(NamedTuple):
    """Gradients are multiplied by a power of the number of processes, in an expression."""

    node: ast.AST
    module: Module
    power: int | None


@dataclass
class Scales:
    """How gradients are scaled: losses whose gradients are computed, sums over all processes, and factors.

    The `order` has sums and steps of optimizers as they happen, and None where gradients are computed.
    """

    losses: list[Scaled] = field(default_factory=list)
    sums: list[Scaled] = field(default_factory=list)
    factors: list[Scaled] = field(default_factory=list)
    order: list[Scaled | Update | None] = field(default_factory=list)

    def lonely(self) -> Update | None:
        """Return a step whose gradients no process gives the others, beside one whose gradients they exchange."""
        exchanged: dict[ast.Call, bool] = {}
        steps: dict[ast.Call, Update] = {}
        computed = summed = False
        for one in self.order:
            if one is None:
                computed, summed = True, False
            elif isinstance(one, Scaled):
                summed = True
            elif computed:
                exchanged[one.call] = exchanged.get(one.call, False) or summed
                steps[one.call] = one
                computed = summed = False
        alone = [call for call, is_exchanged in exchanged.items() if not is_exchanged]
        return steps[alone[0]] if alone and len(alone) < len(exchanged) else None

    def note(self, kind: list[Scaled], node: ast.AST, module: Module, power: int | None) -> None:
        if not any(one.node is node for one in kind):
            kind.append(Scaled(node, module, power))


def carrier_in(value: Any) -> Own | None:
    """Return the value with a power that a value is, or that it holds."""
    if isinstance(value, Own):
        return value
    if isinstance(value, Container):
        return value.own or next((one for one in value.held if isinstance(one, Own)), None)
    return next((one for one in value if isinstance(one, Own)), None) if type(value) is tuple else None


def power_of(values: Iterable[Any]) -> int | None:
    """Return the power of what is made of several values; None if they have different ones."""
    found = {own.power for own in map(carrier_in, values) if own is not None}
    return found.pop() if len(found) == 1 else None if found else 0


def power_of_number(value: Any, node: ast.AST, process: Process | None, *, is_exact: bool) -> int | None:
    """Return 1 for the number of processes, -1 for its inverse, and 0 for any other number; None if it may be one.

    Unless it `is_exact`, another number may be the same by chance: only words such as `world_size` tell then.
    """
    is_named = is_exact or _OF_WORLD.search(unparsed(node)) is not None
    if process is None or process.world_size == 1 or not is_named:
        return 0
    if type(value) not in (int, float):
        return None if value is UNKNOWN or isinstance(value, Record) else 0
    return 1 if value == process.world_size else -1 if value == 1 / process.world_size else 0


def power_of_product(op: ast.operator, powers: tuple[int | None, int | None]) -> int | None:
    """Return the power of `left op right`."""
    left, right = powers
    if left is None or right is None:
        return None
    if isinstance(op, ast.Mult):
        return left + right
    if isinstance(op, (ast.Div, ast.FloorDiv)):
        return left - right
    return left if left == right else None


def operator_of(name: str) -> ast.operator | None:
    """Return the operator that a method stands for: `grad.div_(n)`."""
    return ast.Div() if name in _DIVIDES else ast.Mult() if name in _MULTIPLIES else None


def adds_up(name: str, operation: str) -> int | None:
    """Return the power that a collective gives what it changes; None for other calls, or if it is not known."""
    if name.rpartition(".")[2] not in _SUMS:
        return None
    return 1 if operation in ("", "SUM") else 0 if operation in ("AVG", "MAX", "MIN") else None


def is_in_place(name: str) -> bool:
    return name.endswith("_")
