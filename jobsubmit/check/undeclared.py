"""Fields of the parsed arguments that the code reads, and that no option declares."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import pairwise

from jobsubmit.check.code import Code
from jobsubmit.check.origins import last_value, seen_through
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import FUNCTIONS, Module, returned_values, spelled, unparsed
from jobsubmit.check.program.variables import assigned_to, parameters, variable_of
from jobsubmit.common.finding import Finding

_SET_OTHERWISE = frozenset(["__setattr__", "__getattr__"])
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
    if _SET_OTHERWISE & code.names_in_use or any(_may_change(code, call, home) for home, call in code.calls("vars")):
        return
    known = {option.field for option in line.options} | {*program.attribute_stores} | {*dir(argparse.Namespace())}
    for module, call, name in code.reached.calls:
        named = _set_by(code, call, name, module)
        if named is None:
            return
        known |= named
    if any(node.attr == "__dict__" and _holds(code, node.value, home) for home, node in program.of(ast.Attribute)):
        return
    for module, node in program.of(ast.Attribute):
        is_read = isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and node.attr not in known
        if is_read and _is_parsed(code, node.value, module) and _is_executed(code, node, module):
            like = get_close_matches(node.attr, known, 1)
            hint = f"use {unparsed(node.value)}.{like[0]}, or declare --{node.attr}" if like else ""
            yield Finding(
                "error",
                "undeclared",
                module.where(node),
                f"{unparsed(node)} is read, but no option declares it: the program ends with an AttributeError",
                hint or f"declare --{node.attr}, or give the value in another way",
            )
            return


def _set_by(code: Code, call: ast.Call, name: str, module: Module) -> set[str] | None:
    """Return the fields that a call may add to the parsed arguments; None if they are not known."""
    if getattr(call.func, "attr", "") == "set_defaults":
        given = {keyword.arg for keyword in call.keywords}
        return None if None in given or call.args else {one for one in given if one is not None}
    if name == "setattr" and call.args and _holds(code, call.args[0], module):
        field = call.args[1] if len(call.args) > 1 else None
        return {str(field.value)} if isinstance(field, ast.Constant) else None
    return None if name == "argparse.Namespace" else set()


def _holds(code: Code, node: ast.expr, module: Module) -> bool:
    return isinstance(node, ast.Name) and code.values.namespaces.hold(node, module)


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
        if is_given and not any(_is_before(code, store, node, module) for store in stores):
            return False
        last = last_value(node, module)  # `args = get_parser()`, and then `args = args.parse_args()`
        values = [last] if last is not None else [assigned_to(store, module) for store in stores]
        return all(_is_parse(code, value, module) for value in values)
    calls = code.program.calls_to(scope, module) if isinstance(scope, FUNCTIONS) else ()
    given = [(home, given_for(call, scope, node.id)) for home, call in calls if isinstance(scope, FUNCTIONS)]
    return bool(given) and all(isinstance(one, ast.Name) and _is_parsed(code, one, home) for home, one in given)


def _is_before(code: Code, store: ast.Name, node: ast.Name, module: Module) -> bool:
    """Return whether a variable is set in each call of a function before an expression of it."""
    function = module.function_of(store)
    around = module.parents.get(module.parents[store])
    if isinstance(around, ast.If) and unparsed(around.test) in (f"{store.id} is None", f"not {store.id}"):
        calls = code.program.calls_to(function, module) if function is not None else ()
        made = [call for home, call in calls if code.reached.of(call, home)]
        if function is not None and all(given_for(call, function, store.id) is None for call in made):
            around = module.parents.get(around)
    return around is function and store.lineno < node.lineno


def _is_parse(code: Code, node: ast.AST | None, module: Module) -> bool:
    """Return whether a call parses the arguments, or enters a function of the program that returns what it parses."""
    if not isinstance(node, ast.Call):
        return False
    if _parses(node):
        return True
    found = code.program.called(node, module)
    returned = returned_values(found[1]) if found is not None and isinstance(found[1], FUNCTIONS) else ()
    values = [seen_through(value, found[0]) for value in returned if found is not None]
    return bool(values) and all(map(_parses, values))


def _parses(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARSES


def _is_executed(code: Code, node: ast.Attribute, module: Module) -> bool:
    """Return whether an expression is surely computed, and its error is not caught."""
    around = (node, *module.above(node))
    is_optional = any(isinstance(above, _CHOICES) for above in around)
    is_optional |= any(isinstance(above, ast.Assert) and inner is above.msg for inner, above in pairwise(around))
    return not is_optional and code.reached.is_sure(node, module)
