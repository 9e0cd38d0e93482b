"""Figures that are divided by the number of processes, and that nothing sums over them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.calls import BARRIERS, CollectiveFinder, finder_of
from jobsubmit.check.models.gradients import division, is_world_size
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, spelled, unparsed
from jobsubmit.check.program.tree import factors_of, walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_AVERAGES = re.compile(r"reduce|average|avg|mean|sync|aggregate|gather", re.IGNORECASE)
_COMBINES = re.compile(
    r"^synchronize_between_processes$"
    r"|^(?:all_?)?reduce_(?:mean|sum|tensor|dict|loss|value|metric)|^average_(?:loss|metric|tensor|value)"
)
_COPIES = re.compile(r"\.(?:clone|detach)\(\)|^torch\.(?:tensor|as_tensor|stack|cat|zeros|ones|zeros_like)\(")
_NO_FIGURE = re.compile(r"(?:^|_)(?:lr|rate|batch|num|n|count|size|len|samples?|steps?|total|target|epochs?)(?:_|$)")
_BY_OTHERS = re.compile(r"reduce|gather|sync|barrier|broadcast|average", re.IGNORECASE)


def check_averages(code: Code) -> Iterator[Finding]:
    """Yield a warning for a figure that is a share of each process's own value, where the average of all is meant."""
    if not code.is_parallel:
        return
    finder = finder_of(code)
    yield from _never_combined(finder)
    for module, node in code.program.of(ast.Call, ast.AugAssign, ast.BinOp):
        divided, by = division(node)
        root = _root(divided) if divided is not None else None
        if divided is None or by is None or root is None or not code.reached.of(node, module):
            continue
        if not any(is_world_size(code, one, module) for one in factors_of(by)) or not _is_own_value(root, node, module):
            continue
        if not _is_combined(finder, root, node, module):
            yield Finding(
                "warning",
                "not-summed",
                module.where(node),
                f"{unparsed(divided)} is divided by the number of processes, but nothing sums it over them: the result "
                "is a part of one process's own value, not the average of all",
                f"call dist.all_reduce({unparsed(divided)}) before",
            )
            return


def _never_combined(finder: CollectiveFinder) -> Iterator[Finding]:
    """Yield a warning for a function whose name says that it combines what processes have, and which only waits."""
    for module, function in finder.code.program.of(ast.FunctionDef):
        if not _COMBINES.search(function.name) or not finder.code.reached.entered(function, module):
            continue
        nodes = walk(function)
        is_of_figures = any(isinstance(getattr(one, "ctx", None), ast.Store) for one in nodes)
        calls = [one for one in nodes if isinstance(one, ast.Call)] if is_of_figures else []
        combining = [one for one in calls if _says_so(one) or finder.may_combine(one, module)]
        if combining and all(finder.name_of(one, module) in BARRIERS for one in combining):
            yield Finding(
                "warning",
                "not-summed",
                module.where(combining[0]),
                f"{function.name}() waits for the other processes, but combines nothing: each goes on with its own "
                "figures",
                "call dist.all_reduce() after this",
            )
            return


def _root(node: ast.expr) -> ast.Name | None:
    """Return the variable that a figure is, or is taken from: `loss` of `loss.item()`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        node = node.func.value
    return node if isinstance(node, ast.Name) else None


def _is_own_value(name: ast.Name, node: ast.AST, module: Module) -> bool:
    """Return whether a variable surely is a tensor, or what a function that is meant to average is given."""
    scope = module.scope_of(node)
    if isinstance(scope, FUNCTIONS) and (_NO_FIGURE.search(name.id) or _NO_FIGURE.search(scope.name)):
        return False
    if value := last_value(name, module):
        return _COPIES.search(unparsed(value)) is not None
    return isinstance(scope, FUNCTIONS) and name.id in parameters(scope) and bool(_AVERAGES.search(scope.name))


def _is_combined(finder: CollectiveFinder, name: ast.Name, node: ast.AST, module: Module) -> bool:
    """Return whether the processes may combine a variable, or what is made of it: here, or where it is handed on."""
    scope = module.scope_of(node)
    parent = module.parents.get(node)
    here = [one for one in walk(scope) if isinstance(one, ast.Call) and module.scope_of(one) is scope]
    if any(_says_so(one) and _is_of_processes(finder, one, module) for one in here):
        return True  # what is combined may be this by another name
    names = {name.id, *(target.id for target in getattr(parent, "targets", ()) if isinstance(target, ast.Name))}
    for call in (one for one in walk(scope) if isinstance(one, ast.Call) and one is not node):
        own = [given for given in walk(call) if isinstance(given, ast.Name) and given.id in names]
        may_combine = _says_so(call) or finder.may_combine(call, module)
        if may_combine and (own or _changes(call, names, module)):
            return True
        if own and _is_unknown(finder.code, call, module) and _changes(call, names, module):
            return True
    return isinstance(scope, FUNCTIONS) and _is_combined_by_callers(finder, scope, module)


def _is_of_processes(finder: CollectiveFinder, call: ast.Call, module: Module) -> bool:
    """Return whether a call may combine what processes have: a collective, or a function that may lead to one."""
    name = finder.code.program.name_of(call.func, module)
    return name.startswith("torch.distributed.") or not name.startswith(("torch.", "functools."))


def _says_so(call: ast.Call) -> bool:
    """Return whether the last name of what is called says that it combines what processes have."""
    last = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return _BY_OTHERS.search(last) is not None


def _changes(call: ast.Call, names: set[str], module: Module) -> bool:
    """Return whether a call sets one of the variables."""
    statement = next((above for above in (call, *module.above(call)) if isinstance(above, ast.stmt)), None)
    targets = getattr(statement, "targets", ())
    return any(isinstance(one, ast.Name) and one.id in names for target in targets for one in walk(target))


def _is_unknown(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call is of a function whose code is not known, and not of torch."""
    name = code.program.name_of(call.func, module)
    return code.program.called(call, module) is None and "." not in spelled(call.func) and not name.startswith("torch.")


def _is_combined_by_callers(finder: CollectiveFinder, function: Function, module: Module) -> bool:
    """Return whether the result of a function, or what it is given, is part of a collective call of a caller."""
    for home, call in finder.code.program.calls_to(function, module):
        scope = home.scope_of(call)
        given = {one.id for one in walk(call) if isinstance(one, ast.Name)}
        for other in (one for one in walk(scope) if isinstance(one, ast.Call) and one is not call):
            if call in walk(other) or given & {one.id for one in walk(other) if isinstance(one, ast.Name)}:
                name = finder.name_of(other, home)
                if name or (_says_so(other) and finder.may_combine(other, home)):
                    return True
    return False
