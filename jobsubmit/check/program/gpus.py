"""Conditions that ask for GPUs, and the ends of programs that want some."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.program.module import EXITS, FUNCTIONS, Module, returned_values, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.values import Values

_GPUS = re.compile(r"\b(?:cuda|accelerator)\.(?:is_available|device_count)\(|\bcurrent_accelerator\(")
_SAYS = re.compile(r"(?:print|log|warn|warning|info|error|critical|write|exception)$", re.IGNORECASE)


def asks_for_gpus(values: Values, test: ast.AST, module: Module) -> bool:
    """Return whether a condition asks for GPUs: in itself, in a variable, or in what a function returns for it."""
    parts = list(_with_variables(values, test, module))
    for node in [inner for part in parts for inner in walk(part) if isinstance(inner, ast.Call)]:
        home, function = values.program.definition(values.program.name_of(node.func, module)) or (module, None)
        for returned in returned_values(function) if isinstance(function, FUNCTIONS) else ():
            parts += _with_variables(values, returned, home)
    return any(_GPUS.search(unparsed(part)) for part in parts)


def _with_variables(values: Values, node: ast.AST, module: Module) -> Iterator[ast.AST]:
    """Yield an expression, and what its variables are set to in their only place."""
    yield node
    for name in (inner for inner in walk(node) if isinstance(inner, ast.Name)):
        made = values.assigned(name, module)
        if made is not None:
            yield made


def ends_program(values: Values, body: Sequence[ast.stmt], module: Module) -> bool:
    """Return whether a branch does nothing but say something, and end the program or raise an error."""
    is_end = bool(body) and (isinstance(body[-1], ast.Raise) or _is_exit(body[-1]))
    return is_end and _only_says(values, body[:-1], module) and not _acts(values, body[-1], module)


def leaves_main(values: Values, body: Sequence[ast.stmt], module: Module) -> bool:
    """Return whether a branch does nothing but say something, and return from the main function."""
    last = body[-1] if body else None
    function = module.function_of(last) if isinstance(last, ast.Return) and last.value is None else None
    return function is not None and function.name == "main" and _only_says(values, body[:-1], module)


def _is_exit(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and spelled(call.func) in EXITS


def _only_says(values: Values, body: Sequence[ast.stmt], module: Module) -> bool:
    calls = [one.value if isinstance(one, ast.Expr) else None for one in body]
    says = all(isinstance(call, ast.Call) and _SAYS.search(spelled(call.func)) for call in calls)
    return says and not any(_acts(values, one, module) for one in body)


def _acts(values: Values, statement: ast.stmt, module: Module) -> bool:
    """Return whether a statement calls a function of the program."""
    names = (values.program.name_of(node.func, module) for node in walk(statement) if isinstance(node, ast.Call))
    return any(values.program.definition(name) is not None for name in names)
