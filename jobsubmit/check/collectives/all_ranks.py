"""What all processes of a job come to, and whether each uses a path of its own there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.rank_conditions import is_for_main_process_only, is_guarded_by_rank
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import RUNNERS
from jobsubmit.check.program.module import Function, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk

_OWN_NAME = re.compile(
    r"rank|RANK|process_index|getpid|hostname|uuid|tempfile|worker|shard|local_|BytesIO|\bopen\([^)]*['\"][wxa]"
)
_COUNTS = re.compile(r"(?:\w+_)?(?:steps?|epochs?|iters?|iterations?)")  # the same on all ranks


def is_for_all(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether all processes surely come to a node once one does: nothing on the way asks for the rank."""
    return _is_for_all(code, node, module, {})


def _is_for_all(code: Code, node: ast.AST, module: Module, known: dict[ast.AST, bool]) -> bool:
    """Return the same; `known` holds it for functions, False for those that are looked at now."""
    is_of_error = any(isinstance(above, ast.ExceptHandler) for above in module.above(node))
    if is_of_error or code.is_of_no_object(node, module) or is_guarded_by_rank(code, node, module):
        return False  # an error may be one of a single process
    function = module.function_of(node)
    if function is None:
        return code.facts.has_launcher or not code.starts_processes  # else the processes begin in a function
    if function not in known:
        known[function] = False
        known[function] = _is_entered_by_all(code, function, module, known)
    return known[function]


def _is_entered_by_all(code: Code, function: Function, module: Module, known: dict[ast.AST, bool]) -> bool:
    if is_for_main_process_only(code, function, module):
        return False
    outer = module.function_of(function)
    if outer is not None:
        return False  # a function inside another one, which may be handed over
    calls = list(code.program.calls_to(function, module))
    is_method = any(isinstance(above, ast.ClassDef) for above in module.above(function))
    if is_method and function.name not in ("__init__", "__call__"):
        calls = [
            (home, call)
            for home, call, _ in code.program.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == function.name
        ]
    calls = [(home, call) for home, call in calls if code.reached.of(call, home)]
    is_of_model = is_method and function.name == "forward" and code.wraps_models  # all call the wrapper together
    runs = (call.args[:1] for home, call in code.calls(*RUNNERS) if home is module)
    is_run = any(spelled(given[0]) == function.name for given in runs if given)
    if function.name in code.spawned and not is_method:
        return True  # another call of it, beside mp.spawn, is for a single process
    is_started = not calls and (is_run or function.name in code.spawned or bool(function.decorator_list) or is_of_model)
    return is_started or (bool(calls) and all(_is_for_all(code, call, home, known) for home, call in calls))


def is_of_one_process(code: Code, path: ast.AST, module: Module) -> bool:
    """Return whether a path may be another one in each process: it names a rank, or something else of its own."""
    parts = [part for _, part in origins(code, path, module, but=_COUNTS) if not _is_wrapper(part)]
    named = {name for part in parts for name in _keys_read(part)}
    texts = [unparsed(part) for part in parts if not _is_of_other_keys(part, named)]
    return _OWN_NAME.search("\n".join(texts).replace("local_rank == 0", "")) is not None


def _is_wrapper(part: ast.AST) -> bool:
    """Return whether an expression wraps a model, whose device says nothing of the names that its settings give."""
    return isinstance(part, ast.Call) and any(keyword.arg == "device_ids" for keyword in part.keywords)


def _keys_read(part: ast.AST) -> Iterator[str]:
    """Yield the fields and keys that an expression reads: `epoch` of `params.epoch` and of `params["epoch"]`."""
    for node in walk(part):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)


def _is_of_other_keys(part: ast.AST, named: set[str]) -> bool:
    """Return whether an expression is a mapping that is written down, with no key that is read."""
    given = part.args[0] if isinstance(part, ast.Call) and len(part.args) == 1 else part
    keys = [getattr(key, "value", None) for key in given.keys] if isinstance(given, ast.Dict) else []
    return bool(keys) and all(isinstance(key, str) and key not in named for key in keys)
