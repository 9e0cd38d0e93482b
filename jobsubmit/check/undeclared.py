"""Fields of the parsed arguments that the code reads, and that no option declares."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import FUNCTIONS, Module, spelled
from jobsubmit.check.program.variables import assigned_to, parameters, variable_of
from jobsubmit.common.finding import Finding

_SET_OTHERWISE = frozenset(["setattr", "__setattr__", "__dict__", "__getattr__", "set_defaults", "Namespace"])
_READS = re.compile(
    r"(?:^|\.)(?:print|pprint|pformat|dict|sorted|str|repr|len|list|dumps?|safe_dump|deepcopy|copy|info|debug|log|init"
    r"|create|log_params|log_hyperparams|add_hparams|init_trackers|save_hyperparameters)$"
)
_SETS_FIELDS = ("update", "setdefault", "pop", "__setitem__")
_CHOICES = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.Try, ast.comprehension, ast.GeneratorExp, ast.ListComp, ast.DictComp)
_PARSES = ("parse_args", "parse_known_args", "parse_intermixed_args")


def check_undeclared(code: Code) -> Iterator[Finding]:
    """Yield an error for the first field that is surely read, and that neither an option nor the code sets."""
    line, program = code.line, code.program
    if line.kind != "argparse" or line.gaps or line.commands or program.unread:
        return
    if _SET_OTHERWISE & code.names or any(_may_change(code, call, home) for home, call in code.calls("vars")):
        return
    known = {option.field for option in line.options} | {*program.attribute_stores} | {*dir(argparse.Namespace())}
    for module, node in program.of(ast.Attribute):
        is_read = isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and node.attr not in known
        if is_read and _is_parsed(code, node.value, module) and _is_executed(code, node, module):
            like = get_close_matches(node.attr, known, 1)
            hint = f"use {ast.unparse(node.value)}.{like[0]}, or declare --{node.attr}" if like else ""
            yield Finding(
                "error",
                "undeclared",
                module.where(node),
                f"{ast.unparse(node)} is read, but no option declares it: the program ends with an AttributeError",
                hint or f"declare --{node.attr}, or give the value in another way",
            )
            return


def _may_change(code: Code, mapping: ast.Call, module: Module) -> bool:
    """Return whether fields may be set by the mapping of them: `vars(args).update(…)`, `fields = vars(args)`.

    Functions of libraries only read it: `print(vars(args))`.
    """
    above = module.parents.get(mapping)
    if isinstance(above, ast.keyword):
        above = module.parents.get(above)
    if isinstance(above, ast.Attribute):
        return above.attr in _SETS_FIELDS
    if isinstance(above, ast.Subscript):
        return not isinstance(above.ctx, ast.Load)
    is_read = isinstance(above, (ast.FormattedValue, ast.comprehension, ast.For, ast.Compare, ast.Dict))
    is_given = isinstance(above, ast.Call) and _READS.search(spelled(above.func)) is not None
    return not (is_read or is_given)


def _is_parsed(code: Code, node: ast.Name, module: Module) -> bool:
    """Return whether a variable surely holds the parsed arguments: it is set to them, or every call gives them."""
    if not code.values.namespaces.hold(node, module):
        return False
    scope, _ = variable_of(node, module)
    stores = module.own_stores.get((scope, node.id), ())
    if stores:
        is_given = isinstance(scope, FUNCTIONS) and node.id in parameters(scope)
        if is_given and not any(_is_before(store, node, scope, module) for store in stores):
            return False
        return all(_is_parse(assigned_to(store, module)) for store in stores)
    calls = code.program.calls_to(scope, module) if isinstance(scope, FUNCTIONS) else ()
    given = [(home, given_for(call, scope, node.id)) for home, call in calls if isinstance(scope, FUNCTIONS)]
    return bool(given) and all(isinstance(one, ast.Name) and _is_parsed(code, one, home) for home, one in given)


def _is_before(store: ast.Name, node: ast.Name, scope: ast.AST, module: Module) -> bool:
    """Return whether a variable is set in each call of a function before an expression of it."""
    statement = module.parents[store]
    return module.parents.get(statement) is scope and store.lineno < node.lineno


def _is_parse(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARSES


def _is_executed(code: Code, node: ast.Attribute, module: Module) -> bool:
    """Return whether an expression is surely computed, and its error is not caught."""
    is_optional = any(isinstance(above, _CHOICES) for above in module.above(node))
    return not is_optional and code.reached.is_sure(node, module)
