"""Programs that use click."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.modules import Function, Module, Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import UNKNOWN, Values

_TYPES = {"click.INT": "int", "click.FLOAT": "float", "click.STRING": "str"}


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with one click command accepts; None if it has none."""
    commands = list(_commands(program))
    if not commands:
        return None
    module, function = commands[0]
    where = module.where(function)
    if len(commands) > 1 or any(_is(d, program, module, "click.group") for d in function.decorator_list):
        return CommandLine("click", gaps=(Gap(where, "it has subcommands"),))
    options: list[Option] = []
    gaps: list[Gap] = []
    is_lenient = False
    for decorator in function.decorator_list:
        name = _called(decorator, program, module)
        if name == "click.command" and isinstance(decorator, ast.Call):
            is_lenient = any(k.arg in ("context_settings", "cls", None) for k in decorator.keywords)
        elif name in ("click.option", "click.argument") and isinstance(decorator, ast.Call):
            found = _option(decorator, name == "click.argument", module, values)
            if found is None:
                gaps.append(Gap(module.where(decorator), "the name of an option is put together here"))
            else:
                options += found
        elif name != "click.command":
            gaps.append(Gap(module.where(decorator), f"{name or 'a decorator'} may add options"))
    settings = {"allow_abbrev": False}
    return CommandLine("click", tuple(options), not is_lenient, where, tuple(gaps), settings)


def _commands(program: Program) -> Iterator[tuple[Module, Function]]:
    for module, node in program.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(_is(d, program, module, "click.command", "click.group") for d in node.decorator_list):
                yield module, node


def _called(node: ast.AST, program: Program, module: Module) -> str:
    return program.name_of(node.func if isinstance(node, ast.Call) else node, module)


def _is(node: ast.AST, program: Program, module: Module, *names: str) -> bool:
    return _called(node, program, module) in names


def _option(call: ast.Call, is_argument: bool, module: Module, values: Values) -> list[Option] | None:
    names = [values.of(item, module) for item in call.args]
    if not names or not all(isinstance(name, str) for name in names):
        return None
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    told = {name: values.of(node, module) for name, node in given.items() if name}
    where, is_sure = module.where(call), None not in given
    is_required = told.get("required", is_argument and "default" not in told and told.get("nargs") != -1)
    settings: dict[str, Any] = {}
    if is_argument:
        settings["nargs"] = "*" if told.get("nargs") == -1 else told.get("nargs", None if is_required is True else "?")
        return [Option((names[0],), where, {k: v for k, v in settings.items() if v is not None}, is_sure=is_sure)]
    flags = [name for name in names if name.startswith("-")]
    split = [part for name in flags for part in name.split("/")]
    if len(split) > len(flags) or told.get("is_flag") or "flag_value" in told or told.get("count"):
        return [Option((flag.strip(),), where, {"action": "store_true"}, is_sure=False) for flag in split]
    kind, choices = _type(given.get("type"), module, values)
    is_required = is_required is True and not {"envvar", "prompt"} & set(given)
    settings = {"required": is_required, **({"choices": choices} if choices else {})}
    if isinstance(given.get("type"), (ast.Tuple, ast.List)):
        settings["nargs"] = len(given["type"].elts)  # type: ignore[attr-defined]
    if told.get("nargs", 1) != 1:
        settings["nargs"] = told["nargs"] if isinstance(told["nargs"], int) else "?"
    return [Option(tuple(flags), where, settings, kind, told.get("default", UNKNOWN), is_sure)]


def _type(node: ast.AST | None, module: Module, values: Values) -> tuple[str, list[str]]:
    """Return the converter of an option and its choices."""
    if node is None:
        return "", []
    name = _called(node, values.program, module)
    if name == "click.Choice" and isinstance(node, ast.Call) and node.args and len(node.args) == 1:
        choices = values.of(node.args[0], module)
        is_exact = not node.keywords
        return "", choices if isinstance(choices, list) and is_exact else []
    return _TYPES.get(name, name if name in ("int", "float", "str") else "?"), []
