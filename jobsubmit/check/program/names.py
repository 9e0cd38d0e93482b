"""The values of variables where they are used."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program.configurator import configurator_of
from jobsubmit.check.program.entries import with_entries
from jobsubmit.check.program.functions import enter, returned_expression, value_of_parameter
from jobsubmit.check.program.module import COMPREHENSIONS, FUNCTIONS, Function, Module, spelled
from jobsubmit.check.program.operations import UNKNOWN, operated
from jobsubmit.check.program.python_configuration import variables_given
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import UnclearError, is_executed, last_place, parameters, position

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values


def _item(values: Values, node: ast.AST, index: int, size: int, module: Module) -> Any:
    """Return one of the values that several variables are set to at once."""
    if isinstance(node, (ast.Tuple, ast.List)):
        has_star = any(isinstance(item, ast.Starred) for item in node.elts)
        return UNKNOWN if has_star or len(node.elts) != size else values.of(node.elts[index], module)
    if isinstance(node, ast.IfExp) and (test := values.truth(node.test, module)) is not None:
        return _item(values, node.body if test else node.orelse, index, size, module)
    if isinstance(node, ast.Call) and (entered := enter(values, node, module)) is not None:
        frame, home, function = entered
        returned = returned_expression(frame, function, home)
        return UNKNOWN if returned is None else _item(frame, returned, index, size, home)
    if isinstance(node, ast.Call) and index == 1 and getattr(node.func, "attr", "") == "parse_known_args":
        return UNKNOWN if values.leftover is None else list(values.leftover)
    found = values.of(node, module)
    return found[index] if isinstance(found, list) and len(found) == size else UNKNOWN


def value_of_name(values: Values, node: ast.Name, module: Module) -> Any:
    if node.id == "__name__":
        return module.name
    if node.id == "__file__":
        return module.path
    if node.id in values.bound:
        return values.of(values.bound[node.id], module)
    for scope in module.above(node):
        if _binds(scope, node.id):
            return UNKNOWN
        if isinstance(scope, FUNCTIONS):
            if node.id in parameters(scope) or (scope, node.id) in module.own_stores:
                return _variable(values, node.id, scope, module, node)
    if node.id in module.aliases:
        return value_at_top(values, values.program.name_of(node, module))
    return _variable(values, node.id, module.tree, module, node)


def value_at_top(values: Values, name: str) -> Any:
    """Return the value of a variable at the top of a local module, by its whole name."""
    owner, _, last = name.rpartition(".")
    module = values.program.modules.get(owner)
    return _variable(values, last, module.tree, module, None) if module else UNKNOWN


def _variable(values: Values, name: str, scope: ast.Module | Function, module: Module, use: ast.AST | None) -> Any:
    """Return the value that a variable has where it is used: the last one that is surely given to it."""
    places = module.own_stores.get((scope, name), ())
    is_shared = isinstance(scope, ast.Module) and any(module.scope_of(place) is not scope for place in places)
    is_dynamic = isinstance(scope, ast.Module) and module.name in values.program.dynamic
    if is_dynamic or (values.is_strict and is_shared and not values.trusts_fields):
        return UNKNOWN
    if is_shared and (setter := _only_setter(places, scope, module)) is not None:
        return _set_by(values, places, setter, module, use)
    try:
        place = last_place(places, use, scope, module, values.truth)
    except UnclearError:
        return UNKNOWN
    if isinstance(scope, ast.Module) and (given := _given_to_configurator(values, name, place, module, use)):
        value = given[0]
    elif place is not None:
        value = value_set_at(values, place, module)
    elif isinstance(scope, ast.Module):
        value = UNKNOWN
    elif (scope, name) in values.given:
        value = values.given[scope, name]
    else:
        value = value_of_parameter(values, name, scope, module)
    return with_entries(values, value, name, use, module)


def _given_to_configurator(
    values: Values, name: str, place: ast.expr | None, module: Module, use: ast.AST | None
) -> tuple[Any] | None:
    """Return what an argument sets a variable to in place of what the script has set it to before; None otherwise."""
    configures = configurator_of(values.program, module)
    if configures is None or (place is not None and position(place) > position(configures)):
        return None
    if use is not None and module.scope_of(use) is module.tree and position(use) < position(configures):
        return None
    given = variables_given(values.program, values.facts.argv)
    return (UNKNOWN,) if given is None else (given[name],) if name in given else None


def _only_setter(places: Sequence[ast.expr], scope: ast.AST, module: Module) -> Function | None:
    """Return the only function that sets a variable of a module, which it declares global."""
    setters = {module.scope_of(place) for place in places} - {scope}
    setter = setters.pop() if len(setters) == 1 else None
    return setter if isinstance(setter, FUNCTIONS) else None


def _set_by(values: Values, places: Sequence[ast.expr], setter: Function, module: Module, use: ast.AST | None) -> Any:
    """Return the value that a function gives to a variable of its module, once it is called, for use elsewhere."""
    calls = values.program.calls_to(setter, module)
    if use is not None and module.scope_of(use) is setter:
        place = _last_of(values, places, use, setter, module)
        return UNKNOWN if place is None else value_set_at(values, place, module)
    if use is not None and (setter in module.above(use) or isinstance(module.scope_of(use), ast.Module)):
        return UNKNOWN  # it may not be set yet
    own = [place for place in places if module.scope_of(place) is setter]
    runs = {place: is_executed(place, setter, module, values.truth) for place in own}
    sure = [place for place in own if runs[place]]
    if None in runs.values() or not sure or all(call in values.dead for _, call in calls):
        return UNKNOWN
    value = value_set_at(values, max(sure, key=position), module)
    return UNKNOWN if isinstance(value, bool) else value  # a flag may be asked for before it is set


def _last_of(
    values: Values, places: Sequence[ast.expr], use: ast.AST, scope: Function, module: Module
) -> ast.expr | None:
    """Return the place in a function that sets a variable of the module last before it is used there, if clear."""
    own = [place for place in places if module.scope_of(place) is scope]
    try:
        return last_place(own, use, scope, module, values.truth)
    except UnclearError:
        return None


def value_set_at(values: Values, place: ast.expr, module: Module) -> Any:
    """Return the value that one place gives to a variable or an attribute."""
    parent = module.parents.get(place)
    match parent:
        case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
            return values.of(parent.value, module)
        case ast.withitem():
            return values.of(parent.context_expr, module)
        case ast.For(target=target) if target is place:
            entries = values.of(parent.iter, module)
            return entries[0] if isinstance(entries, list) and len(entries) == 1 else UNKNOWN
        case ast.AugAssign(target=ast.Name(id=name)):
            scope = module.scope_of(place)
            before = _variable(values, name, scope, module, place)
            return operated(parent.op, before, values.of(parent.value, module))
        case ast.Tuple() | ast.List():
            above = module.parents.get(parent)
            if isinstance(above, ast.For) and above.target is parent:
                return _only_item(values, above.iter, parent.elts.index(place), module)
            if isinstance(above, ast.Assign) and not any(isinstance(one, ast.Starred) for one in parent.elts):
                return _item(values, above.value, parent.elts.index(place), len(parent.elts), module)
    return UNKNOWN


def _only_item(values: Values, looped: ast.expr, index: int, module: Module) -> Any:
    """Return what one of several variables is in a loop of one pass: `for data, is_train in zip(sets, [True])`."""
    is_zip = isinstance(looped, ast.Call) and spelled(looped.func) == "zip" and len(looped.args) > index
    entries = values.of(looped.args[index], module) if isinstance(looped, ast.Call) and is_zip else UNKNOWN
    return entries[0] if isinstance(entries, list) and len(entries) == 1 else UNKNOWN


def _binds(scope: ast.AST, name: str) -> bool:
    """Return whether a lambda or a comprehension has a variable of its own by a name."""
    if isinstance(scope, ast.Lambda):
        return any(arg.arg == name for arg in scope.args.args)
    if not isinstance(scope, COMPREHENSIONS):
        return False
    targets = (one for generator in scope.generators for one in walk(generator.target))
    return any(isinstance(one, ast.Name) and one.id == name for one in targets)
