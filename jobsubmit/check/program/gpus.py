"""Conditions that ask for GPUs, and the ends of programs that want some."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.program.module import EXITS, Module, spelled
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values

_GPUS = re.compile(r"\b(?:cuda|accelerator)\.(?:is_available|device_count)\(|\bcurrent_accelerator\(")
_SAYS = re.compile(r"(?:print|log|warn|warning|info|error|critical|write|exception)$", re.IGNORECASE)


def asks_for_gpus(values: Values, test: ast.AST, module: Module) -> bool:
    """Return whether a condition asks for GPUs: in itself, in a variable, or in a function that it calls."""
    return any(_GPUS.search(ast.unparse(part)) for part in _parts(values, test, module))


def _parts(values: Values, test: ast.AST, module: Module) -> Iterator[ast.AST]:
    yield test
    for node in walk(test):
        made = values.assigned(node, module) if isinstance(node, ast.Name) else None
        for one in (node, made):
            if one is made and one is not None:
                yield one
            found = (
                values.program.definition(values.program.name_of(one.func, module))
                if isinstance(one, ast.Call)
                else None
            )
            if found is not None:
                yield found[1]


def ends_program(body: Sequence[ast.stmt]) -> bool:
    """Return whether a branch does nothing but say something, and end the program or raise an error."""
    return bool(body) and (isinstance(body[-1], ast.Raise) or _is_exit(body[-1])) and _only_says(body[:-1])


def leaves_main(body: Sequence[ast.stmt], module: Module) -> bool:
    """Return whether a branch does nothing but say something, and return from the main function."""
    last = body[-1] if body else None
    function = module.function_of(last) if isinstance(last, ast.Return) and last.value is None else None
    return function is not None and function.name.startswith("main") and _only_says(body[:-1])


def _is_exit(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and spelled(call.func) in EXITS


def _only_says(body: Sequence[ast.stmt]) -> bool:
    calls = [one.value if isinstance(one, ast.Expr) else None for one in body]
    return all(isinstance(call, ast.Call) and _SAYS.search(spelled(call.func)) for call in calls)
