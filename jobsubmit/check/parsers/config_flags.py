"""Flags of ml_collections: a file of Python makes the configuration, and flags with dots set its fields.

Source: ml_collections.config_flags 1.1: `--config=file.py:name` names the file and what it is given, and
`--config.optim.lr=0.1` sets a field, which must exist; `--noconfig.amp` sets it to false.
"""

from __future__ import annotations

import ast
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
    """Return all names that a file of Python, and those that it may import, give to fields; empty if not all are known.

    It may import those in the same folder at the top of the code, such as `configs/`, and modules that it names.
    """
    sources = values.program.sources
    file = values.program.located(path.partition(":")[0])
    waiting = [file, *(one for one in sources if one.partition("/")[0] == file.partition("/")[0] and "/" in one)]
    found: set[str] = set()
    for one in waiting:
        tree = _tree(sources[one]) if one in sources else None
        names = None if tree is None else _names_set(tree)
        if tree is None or names is None:
            return set()
        found |= names
        waiting += [more for more in _imported(tree) if more in sources and more not in waiting]
    return found


def _tree(source: str) -> ast.Module | None:
    try:
        with Path(source).open(errors="replace") as stream:
            return ast.parse(stream.read(LONGEST_CONFIGURATION))
    except (OSError, SyntaxError, ValueError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the files that a module may import, from the code directory."""
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
        yield from (f"{name.replace('.', '/')}{end}" for name in names for end in (".py", "/__init__.py"))


def _names_set(tree: ast.Module) -> set[str] | None:
    """Return the names that a module gives to fields; None if some of them are computed."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Store()):
                found.add(name)
            case ast.Dict(keys=keys):
                found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            case ast.Subscript(ctx=ast.Store()) | ast.Name(id="setattr") | ast.Attribute(attr="load" | "safe_load"):
                return None
            case ast.Call(func=ast.Attribute(attr="update") | ast.Name(id="ConfigDict"), args=[given, *_]):
                if not isinstance(given, ast.Dict):
                    return None
    return found
