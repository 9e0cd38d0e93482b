"""Programs that use typer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from jobsubmit.check.parsers.accepted import CommandLine, Gap, Option
from jobsubmit.check.parsers.hf_argument_parser import enumerated
from jobsubmit.check.program.calls import argument, parameters_with_defaults
from jobsubmit.check.program.module import Function, Module, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values

_CONFIGURED = ("use_yaml_config", "use_json_config", "use_toml_config")
_DECORATORS = ("command", "callback", "record", "no_grad", "inference_mode")  # others may add options


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with one typer command accepts; None if it has none."""
    if not program.imports("typer"):
        return None
    commands = list(dict.fromkeys(_commands(program)))
    named = {_name_of(*found, values): found for found in commands}
    chosen = next((word for word in values.facts.argv if word in named), None) if len(commands) > 1 else None
    if not commands or _is_nested(program) or (len(commands) > 1 and chosen is None):
        where = commands[0][0].where(commands[0][1]) if commands else program.boot.path
        text = (
            f"it is unclear which of its commands is started ({', '.join(sorted(named))})"
            if commands
            else "no typer command was found"
        )
        return CommandLine("typer", gaps=(Gap(where, text),))
    module, function = named[chosen] if chosen else commands[0]
    own, parameters = function.args, parameters_with_defaults(function)
    options = tuple(found for arg, default in parameters for found in _options(arg, default, module, values))
    if chosen:
        options = (Option(("COMMAND",), module.where(function), {"choices": [chosen]}), *options)
    files = tuple(_configured(function, module, values))
    options = (*map(_left_to_file, options), *files) if files else options
    is_changed = any(_last_name(one) not in (*_DECORATORS, *_CONFIGURED) for one in function.decorator_list)
    is_plain = own.vararg is None and own.kwarg is None and not is_changed
    why = "a decorator may change its options" if is_changed else "it takes *args or **kwargs"
    gaps = () if is_plain else (Gap(module.where(function), why),)
    return CommandLine("typer", options, is_plain, module.where(function), gaps, {"allow_abbrev": False})


def _commands(program: Program) -> Iterator[tuple[Module, Function]]:
    for module, node in program.of(ast.Call, ast.FunctionDef, ast.AsyncFunctionDef):
        if isinstance(node, ast.Call) and program.name_of(node.func, module) == "typer.run" and node.args:
            found = program.definition(program.name_of(node.args[0], module))
            if found and isinstance(found[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield found[0], found[1]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(target, ast.Attribute) and target.attr in ("command", "callback"):
                    yield module, node


def _configured(function: Function, module: Module, values: Values) -> Iterator[Option]:
    """Yield the options that decorators of typer-config add: one that names a file with values for the others."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and _last_name(decorator) in _CONFIGURED:
            given = argument(decorator, "param_name")
            name = "config" if given is None else values.of(given, module)
            yield Option((f"--{name}",), module.where(function))


def _left_to_file(option: Option) -> Option:
    """Return an option that need not be given, since a file may have it."""
    settings = {"nargs": "?"} if option.is_positional else {**option.settings, "required": False}
    return replace(option, settings=settings)


def _last_name(decorator: ast.expr) -> str:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _name_of(module: Module, function: Function, values: Values) -> str:
    """Return what a command is called: as its decorator says, or as its function is."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute):
            given = decorator.args[0] if decorator.args else argument(decorator, "name")
            name = values.of(given, module) if decorator.func.attr == "command" and given is not None else None
            if isinstance(name, str):
                return name
    return function.name.replace("_", "-")


def _is_nested(program: Program) -> bool:
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr in ("add_typer", "callback")
        for _, call, _ in program.calls
    )


def _options(arg: ast.arg, default: ast.expr | None, module: Module, values: Values) -> Iterator[Option]:
    kind, extra = _annotation(arg.annotation, values.program, module)
    maker = default if _maker(default, values.program, module) else extra
    made = _maker(maker, values.program, module)
    plain = default if maker is not default else None
    if made == "typer.Context" or kind == "typer.Context":
        return
    names: tuple[str, ...] = ()
    is_required = default is None
    if isinstance(maker, ast.Call):
        words = [values.of(item, module) for item in maker.args]
        names = tuple(name for name in words if isinstance(name, str) and name.startswith("-"))
        if maker is default:
            first = maker.args[0] if maker.args else next((k.value for k in maker.keywords if k.arg == "default"), None)
            is_required = first is None or (isinstance(first, ast.Constant) and first.value is ...)
    where = module.where(arg)
    if made == "typer.Argument" or (not made and default is None):
        yield Option((arg.arg,), where, {} if is_required else {"nargs": "?"}, kind if kind in ("int", "float") else "")
        return
    names = names or (f"--{arg.arg.replace('_', '-')}",)
    if isinstance(maker, ast.Call) and any(keyword.arg == "count" for keyword in maker.keywords):
        yield Option(names, where, {"action": "count"}, is_sure=False)
        return
    if kind == "bool":
        parts = [part for name in names for part in name.split("/")]
        if parts == list(names):
            parts += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        yield from (Option((part,), where, {"action": "store_true"}, is_sure=False) for part in parts)
        return
    value = values.of(plain, module) if plain is not None else UNKNOWN
    choices = enumerated(kind, values.program)
    if choices:
        is_exact = not isinstance(maker, ast.Call) or values.of(argument(maker, "case_sensitive"), module) in (
            None,
            True,
        )
        like = "" if is_exact else "str.lower"
        yield Option(names, where, {"required": is_required, "choices": choices}, like, value)
        return
    yield Option(names, where, {"required": is_required}, kind if kind in ("int", "float", "str") else "", value)


def _maker(node: ast.AST | None, program: Program, module: Module) -> str:
    name = program.name_of(node.func, module) if isinstance(node, ast.Call) else ""
    return name if name in ("typer.Option", "typer.Argument") else ""


def _annotation(node: ast.expr | None, program: Program, module: Module) -> tuple[str, ast.expr | None]:
    """Return the type of a parameter, and what Annotated adds to it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return "?", None
    if isinstance(node, ast.Subscript) and program.name_of(node.value, module).rpartition(".")[2] == "Annotated":
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        extra = next((item for item in items[1:] if isinstance(item, ast.Call)), None)
        return _annotation(items[0], program, module)[0], extra
    if isinstance(node, ast.Subscript):
        owner = program.name_of(node.value, module).rpartition(".")[2]
        return (_annotation(node.slice, program, module)[0] if owner == "Optional" else "?"), None
    if isinstance(node, ast.BinOp):
        sides = [unparsed(side) for side in (node.left, node.right)]
        known = [side for side in sides if side != "None"]
        return (known[0] if len(known) == 1 else "?"), None
    return (program.name_of(node, module) if node is not None else "str"), None
