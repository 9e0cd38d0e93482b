"""Flags of ml_collections: a file of Python makes the configuration, and flags with dots set its fields.

Source: ml_collections.config_flags 1.1: `--config=file.py:name` names the file and what it is given, and
`--config.optim.lr=0.1` sets a field, which must exist; `--noconfig.amp` sets it to false.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator
from pathlib import Path

from jobsubmit.check.parsers.accepted import Option
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module
from jobsubmit.check.program.program import LONGEST_CONFIGURATION
from jobsubmit.check.program.values import Values


def options_of_file(flag: str, define: ast.Call, module: Module, values: Values) -> list[Option] | None:
    """Return the flags that a configuration takes; None if its fields are not known."""
    where = module.where(define)
    path = _path_given(flag, values) or values.of(argument(define, "default", 1), module)
    fields = _fields(path, values) if isinstance(path, str) else set[str]()
    if not fields:
        return None
    given = (name for name in values.facts.options_given if name.lstrip("-").startswith((f"{flag}.", f"no{flag}.")))
    known = [name for name in given if name.rpartition(".")[2] in fields]
    own = Option((f"--{flag}", f"-{flag}"), where, {})
    return [own, *(Option((name,), where, {"nargs": "?"}, "?") for name in known)]


def _path_given(flag: str, values: Values) -> str:
    """Return the file that the job names for a flag."""
    words = values.facts.argv
    for place, word in enumerate(words):
        name, sign, text = word.partition("=")
        if word.startswith("-") and name.lstrip("-") == flag:
            return text if sign else "".join(words[place + 1 : place + 2])
    return ""


def _fields(path: str, values: Values) -> set[str]:
    """Return all names that a file of Python and those beside it give to fields; empty if there is no such file."""
    program = values.program
    file = program.located(path.partition(":")[0])
    if file not in program.sources:
        return set()
    beside = [one for one in program.sources if posixpath.dirname(one) == posixpath.dirname(file)]
    return {name for one in beside for name in _names_set(program.sources[one])}


def _names_set(source: str) -> Iterator[str]:
    try:
        with Path(source).open(errors="replace") as stream:
            tree = ast.parse(stream.read(LONGEST_CONFIGURATION))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.keyword(arg=str(name)):
                yield name
            case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Store()):
                yield name
            case ast.Dict(keys=keys):
                yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
