"""Results that reduce() gives to one rank only, where all ranks go by them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.rank_conditions import is_guarded_by_rank
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.modules import FUNCTIONS, Module, spelled
from jobsubmit.common.finding import Finding

_REDUCE = "torch.distributed.reduce"
_HANDED_ON = frozenset(["broadcast", "broadcast_object_list", "scatter"])


def check_reduced(code: Code) -> Iterator[Finding]:
    """Yield a warning for a learning rate that each rank lowers by a figure which only one of them has."""
    if not code.is_parallel or "ReduceLROnPlateau" not in code.names or _HANDED_ON & code.names:
        return
    for module, call, _ in code.reached.calls:
        is_step = isinstance(call.func, ast.Attribute) and call.func.attr == "step" and call.args
        if not is_step or is_guarded_by_rank(code, call, module):
            continue
        for home, reduce in _reduces(code, call.args[0], module):
            yield Finding(
                "warning",
                "reduced-to-one",
                home.where(reduce),
                f"reduce() gives the result to one rank only, and each rank passes its own to "
                f"{ast.unparse(call.func)}(): the learning rates of the ranks differ",
                "use all_reduce()",
            )
            return


def _reduces(code: Code, node: ast.AST, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls of reduce() whose results an expression is computed from."""
    for home, part in origins(code, node, module):
        for inner in ast.walk(part):
            if isinstance(inner, ast.Name):
                yield from _of_variable(code, inner, home)
            elif isinstance(inner, ast.Call):
                yield from _in_function(code, inner, home)


def _of_variable(code: Code, name: ast.Name, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    scope = module.scope_of(name)
    for home, call in code.calls(_REDUCE):
        tensor = argument(call, "tensor", 0)
        if home is module and module.scope_of(call) is scope and tensor is not None and spelled(tensor) == name.id:
            yield home, call


def _in_function(code: Code, call: ast.Call, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls of reduce() in a function or a method that returns what it reduces."""
    found = code.program.called(call, module)
    if found is not None and isinstance(found[1], FUNCTIONS):
        inside = set(ast.walk(found[1]))
        yield from ((home, one) for home, one in code.calls(_REDUCE) if one in inside)
