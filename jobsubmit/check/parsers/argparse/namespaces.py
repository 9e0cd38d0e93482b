"""The variables in which a program keeps what it has parsed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.parsers.argparse.search import Search

_CHANGERS = {"set_defaults", "__dict__"}


def namespaces(search: Search) -> Iterator[str]:
    """Yield the variables that hold the parsed arguments, unless the program changes them indirectly."""
    if _CHANGERS & {node.attr for _, node in search.program.of(ast.Attribute)}:
        return
    for module, call, name in search.calls:
        parent = module.parents.get(call)
        is_updated = isinstance(parent, ast.Attribute) and parent.attr == "update"
        if name == "setattr" or (name == "vars" and is_updated):
            return
    returning = {
        f"{module.name}.{scope.name}"
        for module, call, _ in search.parses
        for scope in module.above(call)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    parsing = {id(call) for _, call, _ in search.parses if not any(k.arg == "namespace" for k in call.keywords)}
    kept, others = set[str](), set[str]()
    for module, node in search.program.of(ast.Assign):
        if not isinstance(node.value, ast.Call):
            continue
        is_parsed = id(node.value) in parsing or search.program.name_of(node.value.func, module) in returning
        for target in node.targets:
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            if isinstance(first, ast.Name):
                (kept if is_parsed else others).add(first.id)
    yield from kept - others
