"""Whether processes ask for their group before they make it, and then take themselves for the only ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice, takewhile

from jobsubmit.check.code import INIT, MESHES, SPAWN, Code, is_ddp
from jobsubmit.check.interpreter.trace import Event
from jobsubmit.check.processes.joining import MAKERS
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_ASKS = "torch.distributed.is_initialized"
_DIVIDES = re.compile(r"Sampler$|(?:^|\.)(?:shard|split_dataset_by_node)$")
_KNOWS_OTHERWISE = re.compile(r"environ|getenv|init_process_group")
_MOST_HELPERS = 5  # functions between the question and what it decides
_LONGEST_HELPER = 12  # statements


def check_asking(code: Code) -> Iterator[Finding]:
    """Yield a warning where a process asks for the group before it makes it, and divides data or wraps a model by it.

    Before the first surely made group there was none: torch refuses a second one.
    """
    for one in code.followed[:1]:
        before = list(takewhile(lambda event: event.name not in (INIT, *MESHES, *MAKERS), one.events.values()))
        made = next(islice(one.events.values(), len(before), None), None)
        if made is None or made.name in MAKERS or not code.reached.is_sure(made.call, made.module):
            return
        started = next((call for call in made.path if code.program.name_of(call.func, made.module) == SPAWN), None)
        for event in before:
            is_here = started is None or started in event.path
            decided = _decided(code, event) if event.name == _ASKS and is_here else None
            if decided is not None:
                module, asking, loses = decided
                where = made.module.where(made.call)
                yield Finding(
                    "warning",
                    "no-init",
                    module.where(asking),
                    f"{unparsed(asking)} comes before the process group is made ({where}): each process takes itself "
                    "for the only one, and gets all of the data"
                    if loses == "data"
                    else f"{unparsed(asking)} comes before the process group is made ({where}): each process takes "
                    "itself for the only one, and does not average its gradients",
                    "make the process group first",
                )
                return


def _decided(code: Code, event: Event) -> tuple[Module, ast.Call, str] | None:
    """Return the call by which a question decides on data or a model, through functions that hand on its answer."""
    for call in event.path[: -_MOST_HELPERS - 1 : -1]:
        module = code.module_of(call, event)
        if not code.reached.of(call, module):
            return None
        if (loses := _decided_by(code, call, module)) is not None:
            return module, call, loses
        if not _is_handed_on(call, module):
            return None
    return None


def _decided_by(code: Code, call: ast.Call, module: Module) -> str | None:
    """Return what is lost if a call says that there is only one process: the division of `data`, or `averages`."""
    if (loses := _at(call, module)) is not None:
        return loses
    statement = next((above for above in module.above(call) if isinstance(above, ast.stmt)), None)
    is_one = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    uses = _uses(code, statement.targets[0], module) if isinstance(statement, ast.Assign) and is_one else []
    return next((loses for home, node in uses if (loses := _at(node, home)) is not None), None)


def _at(node: ast.expr, module: Module) -> str | None:
    """Return what is lost where an expression divides data, or is the condition of doing so."""
    inner: ast.AST = node
    for above in module.above(node):
        if isinstance(above, ast.Call) and inner is not above.func and _DIVIDES.search(spelled(above.func)):
            return "data"
        if isinstance(above, (ast.If, ast.IfExp)) and inner is above.test:
            return _in_branches(above)
        if isinstance(above, ast.stmt):
            return None
        inner = above
    return None


def _in_branches(above: ast.If | ast.IfExp) -> str | None:
    """Return what one of two branches does for several processes."""
    calls = [spelled(node.func) for node in walk(above) if isinstance(node, ast.Call)]
    if any(map(_DIVIDES.search, calls)):
        return "data"
    if any(name.rpartition(".")[2] in ("DistributedDataParallel", "DDP") or is_ddp(name) for name in calls):
        return "averages"
    return None


def _uses(code: Code, target: ast.expr, module: Module) -> list[tuple[Module, ast.expr]]:
    """Return where a variable, or a field, is read that is set only once."""
    if isinstance(target, ast.Name):
        names = (node for node in walk(module.scope_of(target)) if isinstance(node, ast.Name))
        found = [(module, node) for node in names if node.id == target.id]
    elif isinstance(target, ast.Attribute):
        found = [(home, node) for home, node in code.program.of(ast.Attribute) if node.attr == target.attr]
    else:
        return []
    is_set_once = sum(isinstance(node.ctx, ast.Store) for _, node in found) == 1
    return [(home, node) for home, node in found if isinstance(node.ctx, ast.Load)] if is_set_once else []


def _is_handed_on(call: ast.Call, module: Module) -> bool:
    """Return whether a call is in a short function that returns something, and may decide what.

    Not where the function makes the group itself, or answers by the environment.
    """
    function = module.function_of(call)
    if not isinstance(function, ast.FunctionDef):
        return False
    inner = list(walk(function))
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in inner)
    if _KNOWS_OTHERWISE.search(unparsed(function)):
        return False
    return returns and sum(isinstance(node, ast.stmt) for node in inner) <= _LONGEST_HELPER
