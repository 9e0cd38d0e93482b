"""Programs that use argparse."""

from __future__ import annotations

import ast

from jobsubmit.check.parsers.accepted import CommandLine, Gap
from jobsubmit.check.parsers.argparse.gaps import gaps
from jobsubmit.check.parsers.argparse.namespaces import namespaces
from jobsubmit.check.parsers.argparse.options import options
from jobsubmit.check.parsers.argparse.search import LENIENT, STRICT, Search
from jobsubmit.check.program.modules import Module, Program
from jobsubmit.check.program.reach import Reached
from jobsubmit.check.program.values import Values


def command_line(program: Program, reached: Reached, values: Values) -> CommandLine | None:
    """Return what a program with argparse accepts; None if it has no parser of that kind."""
    search = Search(program, reached, values)
    if not search.parses and not search.creations:
        return None
    of_argv = [(module, call, how) for module, call, how in search.parses if _is_argv(search, call, module)]
    if not of_argv:
        module, call = search.parses[0][:2] if search.parses else search.creations[0]
        return CommandLine("argparse", gaps=(Gap(module.where(call), "it does not parse the command line as it is"),))
    sure = [(module, call) for module, call, how in of_argv if how in STRICT and search.reached.is_sure(call, module)]
    module, call = sure[0] if sure else of_argv[0][:2]
    return CommandLine(
        "argparse",
        tuple(options(search)),
        is_strict=bool(sure),
        parsed_at=module.where(call),
        gaps=tuple(gaps(search)),
        settings=search.settings(),
        namespaces=frozenset(namespaces(search)),
    )


def _is_argv(search: Search, call: ast.Call, module: Module) -> bool:
    """Return whether a call parses the words of the command line, or those that another parser left."""
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "args"), None)
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return True
    if isinstance(given, ast.Subscript):
        return ast.unparse(given) in ("sys.argv[1:]", "argv[1:]")
    return isinstance(given, ast.Name) and (_is_none_by_default(search, given, module) or _is_left_over(given, module))


def _is_none_by_default(search: Search, name: ast.Name, module: Module) -> bool:
    for scope in module.above(name):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own = [*scope.args.posonlyargs, *scope.args.args]
            defaults = dict(zip([a.arg for a in own][::-1], scope.args.defaults[::-1], strict=False))
            defaults |= {a.arg: d for a, d in zip(scope.args.kwonlyargs, scope.args.kw_defaults, strict=True) if d}
            default = defaults.get(name.id)
            is_none = isinstance(default, ast.Constant) and default.value is None
            calls = search.program.calls_of.get(f"{module.name}.{scope.name}", ())
            return is_none and not any(_gives_words(call) for _, call in calls)
    return False


def _is_left_over(name: ast.Name, module: Module) -> bool:
    return any(
        isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in LENIENT
        and any(isinstance(target, ast.Tuple) and ast.unparse(target.elts[-1]) == name.id for target in node.targets)
        for node in module.of(ast.Assign)
    )


def _gives_words(call: ast.Call) -> bool:
    """Return whether a call hands over anything but the words of the command line."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(ast.unparse(item) not in ("None", "sys.argv[1:]", "argv[1:]") for item in given)
