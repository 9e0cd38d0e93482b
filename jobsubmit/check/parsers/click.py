"""Programs that use click."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, returned_values, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values

_HARMLESS = ("click.pass_context", "click.pass_obj", "click.help_option")
_TYPES = {
    "click.INT": "int",
    "click.IntRange": "int",
    "click.FLOAT": "float",
    "click.FloatRange": "float",
    "click.STRING": "str",
}


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what the click command that is started accepts, with its subcommands."""
    commands = list(_commands(program))
    if not commands:
        return None
    started = [found for found in commands if _is_started(*found, program, reached)]
    module, function = (started or commands)[0]
    if len(started) != 1 and len(commands) > 1:
        text = "there are several click commands, and it is unclear which one is started"
        return CommandLine("click", gaps=(Gap(module.where(function), text),))
    if not _is_group(function, program, module):
        return _line_of(module, function, program, values)
    group = _line_of(module, function, program, values)
    named = {_name_of_command(*found, program, values): found for found in _subcommands(function, program, commands)}
    if "" in named or group.gaps:
        text = f"it is unclear which of its subcommands is started ({', '.join(sorted(filter(None, named)))})"
        return replace(group, gaps=(*group.gaps, Gap(module.where(function), text)))
    return replace(group, commands={name: _line_of(*found, program, values) for name, found in named.items()})


def _line_of(module: Module, function: Function, program: Program, values: Values) -> CommandLine:
    options: list[Option] = []
    gaps: list[Gap] = []
    is_lenient = False
    for module_of, decorator in _decorators(function, module, program):
        name = _called(decorator, program, module_of)
        last = name.rpartition(".")[2]
        if last in ("command", "group") and isinstance(decorator, ast.Call):
            is_lenient = is_lenient or any(_may_be_lenient(k) for k in decorator.keywords)
        elif name in ("click.option", "click.argument") and isinstance(decorator, ast.Call):
            found = _option(decorator, name == "click.argument", module_of, values)
            if found is None:
                gaps.append(Gap(module_of.where(decorator), "the name of an option is computed here"))
            else:
                options += found
        elif name == "click.version_option":
            options.append(Option(("--version",), module_of.where(decorator), {"action": "store_true"}, is_sure=False))
        elif last not in ("command", "group") and name not in _HARMLESS:
            gaps.append(Gap(module_of.where(decorator), f"{name or 'a decorator'} may add options"))
    settings = {"allow_abbrev": False}
    return CommandLine("click", tuple(options), not is_lenient, module.where(function), tuple(gaps), settings)


def _decorators(function: Function, module: Module, program: Program) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the decorators of a function, and those that a decorator of the program puts on the function it returns."""
    for decorator in function.decorator_list:
        found = program.definition(program.name_of(decorator, module))
        outer = found[1] if found is not None and isinstance(found[1], FUNCTIONS) else None
        inner = [one for one in outer.body if isinstance(one, FUNCTIONS)] if outer is not None else []
        returned = set(map(spelled, returned_values(outer))) if outer is not None else set()
        if found is None or len(inner) != 1 or inner[0].name not in returned:
            yield module, decorator
            continue
        own = [one for one in inner[0].decorator_list if not unparsed(one).startswith(("functools.wraps", "wraps"))]
        yield from ((found[0], one) for one in own)


def _commands(program: Program) -> Iterator[tuple[Module, Function]]:
    """Yield what is a command: decorated by click, or by a group of the program's."""
    groups: set[str] = set()
    functions = [(module, function) for module, function in program.of(ast.FunctionDef, ast.AsyncFunctionDef)]
    for module, node in functions:
        if _is_group(node, program, module):
            groups.add(node.name)
    for module, node in functions:
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            of_group = isinstance(target, ast.Attribute) and unparsed(target.value) in groups
            if _is(decorator, program, module, "click.command", "click.group") or of_group:
                yield module, node
                break


def _is_group(function: Function, program: Program, module: Module) -> bool:
    return any(_is(decorator, program, module, "click.group") for decorator in function.decorator_list)


def _is_started(module: Module, function: Function, program: Program, reached: Reached) -> bool:
    """Return whether a command is called, and not by another one."""
    return any(
        name == f"{module.name}.{function.name}" and not any(isinstance(n, ast.FunctionDef) for n in home.above(call))
        for home, call, name in reached.calls
    )


def _subcommands(
    group: Function, program: Program, commands: Sequence[tuple[Module, Function]]
) -> Iterator[tuple[Module, Function]]:
    """Yield the commands of a group: decorated by it, or added to it."""
    added = {
        program.name_of(call.args[0], module)
        for module, call, _ in program.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_command" and call.args
    }
    for module, function in commands:
        targets = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
        if f"{module.name}.{function.name}" in added or any(
            isinstance(target, ast.Attribute) and unparsed(target.value) == group.name for target in targets
        ):
            yield module, function


def _name_of_command(module: Module, function: Function, program: Program, values: Values) -> str:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and _called(decorator, program, module).rpartition(".")[2] == "command":
            given = decorator.args[0] if decorator.args else argument(decorator, "name")
            if given is not None:
                name = values.of(given, module)
                return name if isinstance(name, str) else ""
    return function.name.replace("_", "-").removesuffix("-command").removesuffix("-cmd")


def _called(node: ast.AST, program: Program, module: Module) -> str:
    return program.name_of(node.func if isinstance(node, ast.Call) else node, module)


def _may_be_lenient(setting: ast.keyword) -> bool:
    """Return whether a command with this setting may pass over options that it does not know."""
    if setting.arg == "context_settings":
        return not isinstance(setting.value, (ast.Dict, ast.Call)) or any(
            name in unparsed(setting.value) for name in ("ignore_unknown_options", "allow_extra_args", "**")
        )
    return setting.arg in ("cls", None)


def _is(node: ast.AST, program: Program, module: Module, *names: str) -> bool:
    return _called(node, program, module) in names


def _option(call: ast.Call, is_argument: bool, module: Module, values: Values) -> list[Option] | None:
    names = [values.of(item, module) for item in call.args]
    if not names or not all(isinstance(name, str) for name in names):
        return None
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    known = {name: values.of(node, module) for name, node in given.items() if name}
    where, is_sure = module.where(call), None not in given
    is_required = known.get("required", is_argument and "default" not in known and known.get("nargs") != -1)
    settings: dict[str, Any] = {}
    if is_argument:
        settings["nargs"] = (
            "*" if known.get("nargs") == -1 else known.get("nargs", None if is_required is True else "?")
        )
        return [Option((names[0],), where, {k: v for k, v in settings.items() if v is not None}, is_sure=is_sure)]
    flags = [name for name in names if name.startswith("-")]
    own_name: dict[str, Any] = dict([("dest", name) for name in names if name.isidentifier()][:1])
    split = [part for name in flags for part in name.split("/")]
    if len(split) > len(flags) or known.get("is_flag") or "flag_value" in known or known.get("count"):
        switch = {"action": "store_true", **own_name}
        return [Option((flag.strip(),), where, switch, is_sure=False) for flag in split]
    kind, choices = _type(given.get("type"), module, values)
    is_required = is_required is True and not {"envvar", "prompt"} & set(given)
    if kind == "" and not choices and type(known.get("default")) in (int, float):
        kind = type(known["default"]).__name__  # click takes the type from the default
    settings = {"required": is_required, **own_name, **({"choices": choices} if choices else {})}
    if isinstance(given.get("type"), (ast.Tuple, ast.List)):
        settings["nargs"] = len(given["type"].elts)  # type: ignore[attr-defined]
    if known.get("nargs", 1) != 1:
        settings["nargs"] = known["nargs"] if isinstance(known["nargs"], int) else "?"
    return [Option(tuple(flags), where, settings, kind, known.get("default", UNKNOWN), is_sure)]


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
