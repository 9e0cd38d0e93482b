"""Which arguments by name the functions and classes of installed libraries accept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.installed.libraries import Found, Libraries

_DATACLASS = "dataclass"
_KEEPS_SIGNATURE = frozenset(
    [
        *("cache", "lru_cache"),  # those of functools and of librosa
        *("staticmethod", "classmethod", "final", "override", "overload", "deprecated", "no_grad"),
        *("_exception_logger", "_time_logger", "requires", "_defaults_from_env_vars"),  # torch, transformers, Lightning
    ]
)
_DEEPEST = 10  # classes above each other


def accepted_names(name: str, libraries: Libraries) -> frozenset[str] | None:
    """Return the arguments by name that a call of `name` may have; None if that is not known, or if any are accepted.

    Of several definitions, one that accepts a name is enough.
    """
    found = libraries.definitions(name)
    accepted = [_accepted(one, libraries) for one in found or ()]
    names = [one for one in accepted if one is not None]
    return frozenset().union(*names) if names and len(names) == len(accepted) else None


def positional_names(name: str, libraries: Libraries) -> tuple[list[str], list[str]] | None:
    """Return the arguments that a call of `name` may give without their names, and those that it must name.

    None if that is not known, or if it may give any number of them.
    """
    found = libraries.definitions(name)
    if found is None or len(found) != 1:
        return None
    node: ast.AST | None = found[0].node
    first = 0
    if isinstance(node, ast.ClassDef):
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        is_plain = not {*_decorators(node)} and not node.keywords and "__new__" not in methods
        node, first = methods.get("__init__") if is_plain else None, 1
    if not isinstance(node, ast.FunctionDef) or node.args.vararg or set(_decorators(node)) - _KEEPS_SIGNATURE:
        return None
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    return names[first:], [one.arg for one in node.args.kwonlyargs]


def members_of(name: str, libraries: Libraries) -> frozenset[str] | None:
    """Return what the body of an Enum of a library defines; None if `name` is none, or not known."""
    found = libraries.definitions(name)
    node = found[0].node if found is not None and len(found) == 1 else None
    if not isinstance(node, ast.ClassDef) or not any(ast.unparse(base).endswith("Enum") for base in node.bases):
        return None
    targets = [target for one in node.body if isinstance(one, ast.Assign) for target in one.targets]
    targets += [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
    methods = {one.name for one in node.body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}
    return frozenset(methods | {target.id for target in targets if isinstance(target, ast.Name)})


def fields_of(name: str, libraries: Libraries) -> dict[str, str] | None:
    """Return field → annotation of a dataclass with those above it, in order; None if that is not known."""
    found = libraries.definitions(name)
    if found is None or len(found) != 1 or not isinstance(found[0].node, ast.ClassDef):
        return None
    return _fields(found[0], libraries)


def _accepted(found: Found, libraries: Libraries, depth: int = 0) -> frozenset[str] | None:
    node = found.node
    if not isinstance(node, ast.ClassDef):
        return _of_function(node)
    decorators = set(_decorators(node))
    if decorators - {_DATACLASS} - _KEEPS_SIGNATURE or node.keywords or depth > _DEEPEST:
        return None
    methods = {one.name: one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if "__new__" in methods:
        return None
    if "__init__" in methods:
        return _of_function(methods["__init__"])
    if _DATACLASS in decorators:
        fields = _fields(found, libraries)
        return None if fields is None else frozenset(fields)
    above = _above(found, libraries)
    return _accepted(above[0], libraries, depth + 1) if above else None


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str] | None:
    if node.args.kwarg is not None or set(_decorators(node)) - _KEEPS_SIGNATURE:
        return None
    return frozenset(one.arg for one in (*node.args.args, *node.args.kwonlyargs))


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        yield ast.unparse(called).rpartition(".")[2]


def _above(found: Found, libraries: Libraries) -> list[Found] | None:
    """Return the classes that a class is derived from; None if one is not known."""
    classes: list[Found] = []
    for base in found.node.bases if isinstance(found.node, ast.ClassDef) else ():
        named = libraries.named(base.id, found.home) if isinstance(base, ast.Name) else None
        if named is None or len(named) != 1:
            return None
        classes += named
    return classes


def _fields(found: Found, libraries: Libraries, depth: int = 0) -> dict[str, str] | None:
    node = found.node
    above = _above(found, libraries)
    if not isinstance(node, ast.ClassDef) or above is None or _DATACLASS not in _decorators(node) or depth > _DEEPEST:
        return None
    fields: dict[str, str] = {}
    for base in reversed(above):
        inherited = _fields(base, libraries, depth + 1)
        if inherited is None:
            return None
        fields |= inherited
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation).strip("'\"")
            if "ClassVar" not in annotation and "init=False" not in ast.unparse(item.value or item.annotation):
                fields[item.target.id] = annotation
    return fields
