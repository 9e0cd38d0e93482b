"""Files of settings that HfArgumentParser reads, whatever names them, and their keys that no dataclass declares."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import get_close_matches

from jobsubmit.check.code import Code
from jobsubmit.check.parsers.hf_argument_parser import FROM_FILE, PARSERS, declared_by
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.configuration import parse_text, read_text
from jobsubmit.check.program.module import Module
from jobsubmit.common.finding import Finding


def check_settings_files(code: Code) -> Iterator[Finding]:
    """Yield a warning for the first key of a file of settings that looks like another one which is declared.

    Source: `HfArgumentParser.parse_dict` of transformers 4.57 raises ValueError for keys that no dataclass has.
    """
    if code.line.kind == "HfArgumentParser":
        return  # its arguments name the file: they are compared with what it declares
    for module, call, _ in code.reached.calls:
        parser = _parser_of(code, call, module)
        if parser is None or argument(call, "allow_extra_keys", 1) is not None:
            continue
        path = code.values.of(argument(call, "json_file", 0) or argument(call, "yaml_file"), module)
        if not isinstance(path, str):
            continue
        classes, options, gaps = declared_by(parser, module, code.program, code.values)
        settings = parse_text(read_text(code.program, path))
        declared = [option.field for option in options]
        of_libraries = {module.where(one) for one in classes}  # other versions of them have other fields
        own = [option.field for option in options if option.where not in of_libraries]
        unknown = [key for key in settings if key not in declared] if isinstance(settings, dict) and not gaps else []
        for key in unknown:
            if like := get_close_matches(str(key), own, 1):
                yield Finding(
                    "warning",
                    "argument-unknown",
                    path,
                    f"no dataclass of {module.where(parser)} declares {key}: HfArgumentParser refuses the file",
                    f"use {like[0]}, or declare {key}",
                )
                return


def _parser_of(code: Code, call: ast.Call, module: Module) -> ast.Call | None:
    """Return the call that makes the parser whose method reads a file, if a call is one of that."""
    method = call.func
    if not isinstance(method, ast.Attribute) or method.attr not in FROM_FILE:
        return None
    made = method.value
    makers = module.assigned_calls.get(made.id, ()) if isinstance(made, ast.Name) else [made]
    parsers = [one for one in makers if isinstance(one, ast.Call) and _makes_parser(code, one, module)]
    return parsers[-1] if parsers else None


def _makes_parser(code: Code, call: ast.Call, module: Module) -> bool:
    return code.program.name_of(call.func, module).rpartition(".")[2] in PARSERS
