"""Results of reductions that get lost: reduce() gives them to one rank only, and those in a copy nobody reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import CollectiveFinder, finder_of
from jobsubmit.check.collectives.own_figures import is_own_figure
from jobsubmit.check.collectives.rank_conditions import is_guarded_by_rank, is_in_branch_of_zero
from jobsubmit.check.origins import is_sent, last_value, origins
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import FUNCTIONS, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import is_load
from jobsubmit.common.finding import Finding

_REDUCE = "torch.distributed.reduce"
_COPIES = frozenset(["cat", "concat", "stack", "hstack", "vstack", "clone", "_flatten_dense_tensors"])
_STOPS = re.compile(
    r"(?:^|\.)early_?stop\w*(?:\.(?:step|update|check|__call__))?$|\bstopper\w*(?:\.\w+)?$", re.IGNORECASE
)


def check_reduced(code: Code) -> Iterator[Finding]:
    """Yield a warning where each rank goes by a figure which only one has: for its learning rate, or for its end."""
    if not code.is_parallel:
        return
    if "ReduceLROnPlateau" in code.names:
        yield from _learning_rates(code)
    yield from _stopped(code)
    yield from _in_copy(code)


def _in_copy(code: Code) -> Iterator[Finding]:
    """Yield a warning for what all_reduce() adds up in a copy of tensors that nothing reads afterwards."""
    for module, call in code.calls("torch.distributed.all_reduce"):
        function, name = module.function_of(call), argument(call, "tensor", 0)
        made = last_value(name, module) if isinstance(name, ast.Name) else None
        copies = spelled(made.func).rpartition(".")[2] if isinstance(made, ast.Call) else ""
        if function is None or not isinstance(name, ast.Name) or copies not in _COPIES:
            continue
        loads = [node for node in walk(function) if is_load(node, name.id)]
        if all(node is name or _is_changed_in_place(node, module) for node in loads):
            yield Finding(
                "warning",
                "reduced-copy",
                module.where(call),
                f"all_reduce() changes {name.id}, a copy that {copies}() has made, and nothing reads it afterwards: "
                "the tensors themselves stay as they were",
                "copy the results back into them, or call all_reduce() on each of them",
            )
            return


def _is_changed_in_place(name: ast.Name, module: Module) -> bool:
    """Return whether a variable stands in a statement that only changes its tensor: `flat.div_(size)`."""
    method = module.parents.get(name)
    call = module.parents.get(method) if isinstance(method, ast.Attribute) and method.attr.endswith("_") else None
    return isinstance(call, ast.Call) and isinstance(module.parents.get(call), ast.Expr)


def _stopped(code: Code) -> Iterator[Finding]:
    """Yield a warning for a figure that only one rank has, and by which each decides when the training ends."""
    calls = code.reached.calls if any(True for _ in code.calls(_REDUCE)) else ()
    for module, call, _ in calls:
        if not _STOPS.search(spelled(call.func)) or not call.args or is_guarded_by_rank(code, call, module):
            continue
        if any(_combines_later(node, call) for node in walk(module.scope_of(call))):
            continue
        if is_sent(code, call.args[0], module):
            continue
        for home, reduce in _reduces(code, call.args[0], module):
            yield Finding(
                "warning",
                "reduced-to-one",
                home.where(reduce),
                f"reduce() gives the result to one rank only, and each rank passes its own to "
                f"{unparsed(call.func)}() ({module.where(call)}): some would stop while others go on, and the job "
                "would hang",
                "use all_reduce()",
            )
            return


def _combines_later(node: ast.AST, call: ast.Call) -> bool:
    """Return whether a collective comes after a call: it may combine what the ranks decided."""
    is_after = isinstance(node, ast.Call) and node.lineno > call.lineno
    return is_after and spelled(node.func).rpartition(".")[2] in ("all_reduce", "all_gather", "broadcast", "reduce")  # type: ignore[attr-defined]


def _learning_rates(code: Code) -> Iterator[Finding]:
    """Yield a warning for a learning rate that each rank lowers by a figure which only one of them has."""
    finder = finder_of(code)
    for module, call, _ in code.reached.calls:
        is_step = isinstance(call.func, ast.Attribute) and call.func.attr == "step" and call.args
        if is_step and is_in_branch_of_zero(code, call, module) and _is_plateau(code, call, module):
            yield Finding(
                "warning",
                "own-learning-rate",
                module.where(call),
                f"only rank 0 calls {unparsed(call.func)}(): the learning rates of the ranks differ",
                "call it on every rank, with the same figure: broadcast what only rank 0 has",
            )
            return
        if not is_step or is_guarded_by_rank(code, call, module) or is_sent(code, call.args[0], module):
            continue
        if _is_plateau(code, call, module) and (own := list(_own_figures(finder, call, module))):
            yield from own
            return
        for home, reduce in _reduces(code, call.args[0], module):
            yield Finding(
                "warning",
                "reduced-to-one",
                home.where(reduce),
                f"reduce() gives the result to one rank only, and each rank passes its own to "
                f"{unparsed(call.func)}(): the learning rates of the ranks differ",
                "use all_reduce()",
            )
            return


def _is_plateau(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a method is surely that of a ReduceLROnPlateau."""
    assert isinstance(call.func, ast.Attribute)
    tests = [above.test for above in module.above(call) if isinstance(above, ast.If)]
    if any(isinstance(one, ast.Call) and "ReduceLROnPlateau" in unparsed(one) for one in tests):
        return True  # isinstance(scheduler, ReduceLROnPlateau)
    made = [(home, part) for home, part in origins(code, call.func.value, module) if isinstance(part, ast.Call)]
    return any(code.program.name_of(part.func, home).endswith(".ReduceLROnPlateau") for home, part in made)


def _own_figures(finder: CollectiveFinder, call: ast.Call, module: Module) -> Iterator[Finding]:
    """Yield a warning where each rank has its own data, and no collective averages what a scheduler is given."""
    if is_own_figure(finder, call.args[0], module):
        yield Finding(
            "warning",
            "own-learning-rate",
            module.where(call),
            f"each rank passes a figure of its own data to {unparsed(call.func)}(): the learning rates of the ranks "
            "differ",
            "average it over all ranks first: all_reduce()",
        )


def _reduces(code: Code, node: ast.AST, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls of reduce() whose results an expression is computed from."""
    for home, part in origins(code, node, module):
        for inner in walk(part):
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
    found = code.program.called(call, module) or code.program.own_method_called(call, module)
    if found is not None and isinstance(found[1], FUNCTIONS):
        inside = set(walk(found[1]))
        yield from ((home, one) for home, one in code.calls(_REDUCE) if one in inside)
