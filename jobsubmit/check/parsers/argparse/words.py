"""Whether a parser parses the words of the command line."""

from __future__ import annotations

import ast

from jobsubmit.check.parsers.argparse.search import LENIENT, Search
from jobsubmit.check.program.modules import Module


def is_argv(search: Search, call: ast.Call, module: Module) -> bool:
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
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in LENIENT
        and any(isinstance(target, ast.Tuple) and ast.unparse(target.elts[-1]) == name.id for target in node.targets)
        for node in module.nodes
    )


def _gives_words(call: ast.Call) -> bool:
    """Return whether a call hands over anything but the words of the command line."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(ast.unparse(item) not in ("None", "sys.argv[1:]", "argv[1:]") for item in given)
