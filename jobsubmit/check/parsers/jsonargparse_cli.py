"""Programs that use CLI() of jsonargparse: their options are the parameters of a function.

Source: jsonargparse 4.53 (measured): a parameter with a default is an option of its name, with underscores, which may
be shortened; one without is a positional argument; a boolean takes true or false; `--config` names a file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.calls import parameters_with_defaults
from jobsubmit.check.program.module import FUNCTIONS, Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values

_MAKERS = ("jsonargparse.CLI", "jsonargparse.auto_cli", "jsonargparse.cli.CLI")
_PLAIN = ("int", "float", "str")
_SIMPLE = frozenset([*_PLAIN, "bool", "None", "Any", "Path", "PathLike", "list", "tuple", "List", "Tuple", "Sequence"])
_HOLDERS = frozenset(["Optional", "Union", "list", "tuple", "List", "Tuple", "Sequence", "Iterable"])
_TRUTHS = [form for word in ("true", "false", "yes", "no", "on", "off") for form in (word, word.title(), word.upper())]


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what CLI() accepts for a function; None if it is not called."""
    found = next(((module, call) for module, call, name in reached.calls if name in _MAKERS), None)
    if found is None:
        return None
    module, call = found
    where = module.where(call)
    if len(call.args) != 1 or call.keywords:
        return CommandLine("jsonargparse", gaps=(Gap(where, "CLI() gets more than a function here"),))
    named = program.definition(program.name_of(call.args[0], module))
    home, function = named or (module, None)
    if not isinstance(function, FUNCTIONS) or function.decorator_list or function.args.vararg or function.args.kwarg:
        text = "CLI() gets something else than a function with plain parameters"
        return CommandLine("jsonargparse", gaps=(Gap(where, text),))
    parameters = parameters_with_defaults(function)
    unclear = [arg for arg, _ in parameters if not _is_simple(arg.annotation)]
    gaps = tuple(Gap(home.where(arg), f"the type of {arg.arg} may have options of its own") for arg in unclear)
    is_in_file = any(word.partition("=")[0] == "--config" for word in values.facts.argv)
    options = [_option(arg, default, home, values, is_in_file=is_in_file) for arg, default in parameters]
    return CommandLine("jsonargparse", (*_of_jsonargparse(where), *options), True, home.where(function), gaps)


def _of_jsonargparse(where: str) -> Iterator[Option]:
    yield Option(("--config",), where)
    yield Option(("--print_config",), where, {"nargs": "?"})


def _option(arg: ast.arg, default: ast.expr | None, module: Module, values: Values, *, is_in_file: bool) -> Option:
    """Return the option of a parameter, or its positional argument, which a file of settings may give as well."""
    annotation = unparsed(arg.annotation) if arg.annotation is not None else ""
    settings: dict[str, Any] = {"dest": arg.arg}
    if annotation == "bool":
        settings["choices"] = list(_TRUTHS)
    elif annotation.rpartition(".")[2].startswith("Literal[") and isinstance(arg.annotation, ast.Subscript):
        choices = values.of(arg.annotation.slice, module)
        settings |= {"choices": list(choices)} if isinstance(choices, (list, tuple)) else {}
    kind = annotation if annotation in _PLAIN else ""
    value = values.of(default, module) if default is not None else UNKNOWN
    if default is None and is_in_file:
        settings["nargs"] = "?"
    appends = (f"--{arg.arg}+",) if re.search(r"\b[Ll]ist\b", annotation) else ()
    names = (arg.arg,) if default is None else (f"--{arg.arg}", *appends)
    return Option(names, module.where(arg), settings, kind, value)


def _is_simple(node: ast.expr | None) -> bool:
    """Return whether a type is one of plain values: no class whose parameters are options, too."""
    match node:
        case None | ast.Constant(value=None):
            return True
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_simple(left) and _is_simple(right)
        case ast.Subscript(value=owner, slice=inner):
            name = unparsed(owner).rpartition(".")[2]
            items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return name == "Literal" or (name in _HOLDERS and all(map(_is_simple, items)))
        case ast.Name() | ast.Attribute():
            return unparsed(node).rpartition(".")[2] in _SIMPLE
        case ast.Constant(value=value):
            return value is ...
    return False
