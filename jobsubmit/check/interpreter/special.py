"""Functions of Python that read or change the variables around them."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from jobsubmit.check.interpreter.memory import Container, External, ModuleValue, Record, Scope, Super
from jobsubmit.check.program.configuration import OpenFile, read_text
from jobsubmit.check.program.operations import UNKNOWN

if TYPE_CHECKING:
    from jobsubmit.check.interpreter.machine import Machine


def _super(run: Machine, node: ast.Call, scope: Scope) -> Any:
    function = next((one for one in scope.chain() if one.function is not None and one.function.owner), None)
    if function is None or function.function is None or function.function.owner is None:
        return UNKNOWN
    given = function.function.node.args
    own = [*given.posonlyargs, *given.args]
    return Super(function.function.owner, function.names.get(own[0].arg) if own else UNKNOWN)


def _globals(run: Machine, node: ast.Call, scope: Scope) -> Any:
    held = Container({})
    held.content = run.global_scope(scope).names
    return held


def _locals(run: Machine, node: ast.Call, scope: Scope) -> Any:
    return Container(dict(scope.names), is_open=True)


def _exec(run: Machine, node: ast.Call, scope: Scope) -> Any:
    """Follow the statements of a text: of a file, as a rule."""
    held = run.value(node.args[0], scope)
    text = read_source(run, held)
    if text is None:
        run.unknown_calls += 1
        run.forget([ModuleValue(scope.module, run.global_scope(scope))])
        return UNKNOWN
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return UNKNOWN
    given = run.value(node.args[1], scope) if len(node.args) > 1 else None
    if isinstance(given, Container) and isinstance(given.content, dict):
        own = Scope(scope.module)
        own.names = given.content
        run.memory.touch(given)
        run.block(tree.body, own)
    else:
        run.block(tree.body, run.global_scope(scope))
    return None


def _spec(run: Machine, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the description of a module that is in a file, by its path."""
    made, loader = Record(_SPEC), Record(_LOADER)
    loader.content["path"] = args[1] if len(args) > 1 else keywords.get("location", UNKNOWN)
    made.content["loader"] = loader
    return made


def _module_of_spec(run: Machine, args: list[Any], keywords: dict[str, Any]) -> Any:
    return Container({}, by_attribute=True)


def _exec_module(run: Machine, args: list[Any], keywords: dict[str, Any]) -> None:
    """Follow the statements of a module that a loader has found in a file; of an unknown file, nothing is known."""
    loader, module = args[0], args[1]
    followed = follow_file(run, loader.content["path"])
    run.memory.touch(module)
    module.is_open = followed is None
    module.content.update(followed.content if followed is not None else {})


def follow_file(run: Machine, path: Any) -> Container | None:
    """Follow a file of the code; return what it defines, None where it cannot be read."""
    module = next((one for one in run.program.modules.values() if one.path == posixpath.normpath(str(path))), None)
    if module is not None:
        return Container(run.module_value(module).scope.names, by_attribute=True)
    text = read_source(run, OpenFile(str(path))) if isinstance(path, (str, PurePosixPath)) else None
    try:
        tree = ast.parse(text or "")
    except SyntaxError:
        return None
    made = Container({}, by_attribute=True)
    own = Scope(run.program.boot)
    own.names = made.content
    run.block(tree.body, own)
    return made if text else None


def read_source(run: Machine, held: Any) -> str | None:
    """Return the text that is executed: one that is written down, or that of a file of the code."""
    if isinstance(held, str):
        return held
    if not isinstance(held, OpenFile):
        return None
    source = run.program.sources.get(posixpath.normpath(held.path))
    if source is None:
        return read_text(run.program, held.path) or None
    with Path(source).open(errors="replace") as stream:
        return stream.read(1 << 16)


def _eval(run: Machine, node: ast.Call, scope: Scope) -> Any:
    text = run.value(node.args[0], scope) if node.args else UNKNOWN
    if not isinstance(text, str):
        return UNKNOWN
    try:
        return run.value(ast.parse(text.strip(), mode="eval").body, scope)
    except SyntaxError:
        return UNKNOWN


_SPEC, _LOADER = External("importlib.machinery.ModuleSpec"), External("importlib.machinery.Loader")
OF_FILES: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    "importlib.util.spec_from_file_location": _spec,
    "importlib.util.module_from_spec": _module_of_spec,
    f"{_LOADER.name}.exec_module": _exec_module,
}
SPECIAL: Mapping[str, Callable[[Any, ast.Call, Scope], Any]] = {
    "super": _super,
    "globals": _globals,
    "locals": _locals,
    "exec": _exec,
    "eval": _eval,
}
