"""What functions of the program get from their calls, and what they return."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobsubmit.check.program.calls import PROCESSES, SPAWNS, argument, default_of, given_for, hides_arguments
from jobsubmit.check.program.module import (
    Function,
    Module,
    is_generator,
    is_of_class,
    is_of_self,
    spelled,
)
from jobsubmit.check.program.objects import made
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.variables import assigned_to, is_executed, own_returns, parameters

if TYPE_CHECKING:
    from jobsubmit.check.program.values import Values

_MOST_CALLERS = 8
_MOST_CALLS = 5  # functions of the program inside each other
_HARMLESS_DECORATORS = (
    *("staticmethod", "classmethod", "property", "cached_property", "cache", "lru_cache", "record"),
    *("no_grad", "inference_mode", "enable_grad"),
)
_GROUP = "torch.distributed.init_process_group"


def value_returned(values: Values, call: ast.Call, module: Module) -> Any:
    """Return the value that a function of the program returns to a call."""
    entered = enter(values, call, module)
    if entered is None:
        return UNKNOWN
    frame, home, function = entered
    returned = returned_expression(frame, function, home)
    return UNKNOWN if returned is None else frame.of(returned, home)


def enter(values: Values, call: ast.Call, module: Module) -> tuple[Values, Module, Function] | None:
    """Return a function that a call enters, with the values of its parameters; None where it is not clear."""
    found = _called(values, call, module)
    return None if found is None else _enter(values, call, module, *found)


def _enter(
    values: Values, call: ast.Call, module: Module, home: Module, function: Function
) -> tuple[Values, Module, Function] | None:
    """Return a function with the values that a call gives to its parameters; None where that is not clear."""
    outer = {one for one, _ in values.given}
    is_unclear = hides_arguments(call) or not _is_called_as_written(function)
    if function in outer or len(outer) > _MOST_CALLS or is_unclear:
        return None
    # The entry without a name shows that the function is being evaluated, even if it has no parameters.
    given: dict[tuple[Function, str], Any] = {(function, ""): None}
    for name in parameters(function) - {"self", "cls"}:
        expression = given_for(call, function, name)
        is_given = expression is not None
        value = values.of(expression if is_given else default_of(function, name), module if is_given else home)
        given[function, name] = value
    inits = values.program.calls_of.get(_GROUP, ())
    joins = any(function in one.above(init) for one, init in inits)
    has_group = values.facts.has_launcher and not joins and bool(inits)
    return replace(values, bound={}, given={**values.given, **given}, has_group=has_group), home, function


def value_in_each_call(values: Values, node: ast.expr, module: Module) -> Iterator[Any]:
    """Yield the value of an expression in each call of the function, or of the class, that it is in, where clear."""
    function = module.function_of(node)
    calls = values.program.calls_to(function, module) if function is not None else ()
    for home, call in calls[:_MOST_CALLERS]:
        found = values.program.definition(values.program.name_of(call.func, home))
        is_maker = function is not None and found is not None and function in getattr(found[1], "body", ())
        if call in values.dead or function is None:
            continue
        entered = _enter(values, call, home, module, function) if is_maker else enter(values, call, home)
        if entered is not None and entered[2] is function:
            yield entered[0].of(node, module)


def _called(values: Values, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
    """Return the function of the program, or the method of the same object, that a call calls."""
    if is_of_self(call.func):
        return values.program.own_method_called(call, module)
    found = values.program.definition(values.program.name_of(call.func, module))
    if found is None and is_method_of_program(values, call, module):
        return _method_called(values, call, module)
    return (found[0], found[1]) if found is not None and isinstance(found[1], ast.FunctionDef) else None


def is_method_of_program(values: Values, call: ast.Call, module: Module) -> bool:
    """Return whether a call may be one of a method that the program defines once: `json.load()` is none."""
    if not isinstance(call.func, ast.Attribute) or values.program.is_of_library(call.func.value, module):
        return False
    return len(values.program.methods.get(call.func.attr, ())) == 1


def _method_called(values: Values, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
    """Return the method that `settings.method()` calls, where it is clear what class the object is of."""
    found = made(values.program, call.func.value, module)  # type: ignore[attr-defined] # it is an attribute
    home, owner, method = values.program.methods[call.func.attr][0]  # type: ignore[attr-defined] # it is an attribute
    return (home, method) if found is not None and found.owner is owner else None


def returned_expression(values: Values, function: Function, module: Module) -> ast.expr | None:
    """Return the expression that a function returns first, where that is clear."""
    if is_generator(function):
        return None
    for returned in own_returns(function):
        runs = is_executed(returned, function, module, values.truth)
        if runs is not False:
            return returned.value if runs else None
    return None


def given_by_spawn(
    values: Values, name: str, function: Function, module: Module
) -> tuple[Module, ast.expr | None] | None:
    """Return what mp.spawn or Process gives for a parameter of the function that it starts: None for its default.

    Not for the first one that mp.spawn gives, which is the number of a process.
    """
    starts = (*SPAWNS, *PROCESSES)
    if values.program.calls_of.keys().isdisjoint(starts):
        return None
    own = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    calls = [place for start in starts for place in values.program.calls_of.get(start, ())]
    calls = [place for place in calls if place[1] not in values.dead]
    if len(calls) != 1 or name not in own:
        return None
    home, call = calls[0]
    is_process = values.program.name_of(call.func, home) in PROCESSES
    started = argument(call, "target", 1) if is_process else argument(call, "fn", 0)
    if started is None or values.program.name_of(started, home) != f"{module.name}.{function.name}":
        return None
    given = argument(call, "args", 3 if is_process else 1)
    place = own.index(name) if is_process else own.index(name) - 1
    if place < 0 or (given is not None and not isinstance(given, (ast.Tuple, ast.List))):
        return None
    items = given.elts if given is not None else []
    return (home, items[place]) if place < len(items) else (module, default_of(function, name))


def value_of_parameter(values: Values, name: str, function: Function, module: Module) -> Any:
    """Return the value of a parameter that all calls of its function give the same, or Hydra."""
    if values.composed is not None and values.composed.function is function:
        return values.composed.values if values.composed.is_complete else UNKNOWN
    if _is_click_command(values, function) and name in values.arguments:
        return values.arguments[name]
    if _is_click_command(values, function) and function.args.kwarg is not None and name == function.args.kwarg.arg:
        own = parameters(function)
        return {option: value for option, value in values.arguments.items() if option not in own}
    if values.is_strict and not _is_called_as_written(function):
        return UNKNOWN
    owner = module.parents.get(function)
    is_maker = function.name == "__init__" and getattr(owner, "name", "") not in values.program.inherited
    calls = values.program.calls_to(function, module)
    calls = [place for place in calls if place[1] not in values.dead]
    if not calls and (spawned := given_by_spawn(values, name, function, module)) is not None:
        return values.of(spawned[1], spawned[0])
    is_known = module.definitions.get(function.name) is function or is_maker
    if isinstance(owner, ast.ClassDef) and not is_maker:
        is_known = len(values.program.attribute_loads.get(function.name, ())) == len(
            values.program.calls_to(function, module)
        )
    if isinstance(owner, ast.ClassDef) and is_of_class(function):
        is_known = len(values.program.attribute_loads.get(function.name, ())) == 1
    if not 0 < len(calls) <= _MOST_CALLERS or not is_known:
        return UNKNOWN
    given = [_given(values, name, function, module, *place) for place in calls]
    if _is_spawned(values, function, module):
        spawned = given_by_spawn(values, name, function, module)
        given.append(UNKNOWN if spawned is None else values.of(spawned[1], spawned[0]))
    return given[0] if all(value == given[0] for value in given) else UNKNOWN


def _is_spawned(values: Values, function: Function, module: Module) -> bool:
    """Return whether mp.spawn may start a function, which gets the number of its process first."""
    calls = (place for start in SPAWNS for place in values.program.calls_of.get(start, ()))
    started = ((home, argument(call, "fn", 0)) for home, call in calls if call not in values.dead)
    name = f"{module.name}.{function.name}"
    return any(one is not None and values.program.name_of(one, home) == name for home, one in started)


def _given(values: Values, name: str, function: Function, module: Module, home: Module, call: ast.Call) -> Any:
    """Return the value that one call gives to a parameter, or that it has by default."""
    if function.args.kwarg is not None and function.args.kwarg.arg == name:
        return _others_given(values, function, home, call)
    given = given_for(call, function, name)
    if given is not None:
        return values.of(given, home)
    settings = [values.of(keyword.value, home) for keyword in call.keywords if keyword.arg is None]
    if any(isinstance(one, ast.Starred) for one in call.args) or not all(isinstance(one, dict) for one in settings):
        return UNKNOWN
    for keyword in call.keywords:
        if keyword.arg is None and (places := _set_in(values, name, keyword.value, home)):
            value = assigned_to(places[-1], home)
            runs = is_executed(places[-1], home.scope_of(call), home, values.truth)
            return values.of(value, home) if runs and value is not None else UNKNOWN
    known = next((one for one in settings if name in one), None)
    return values.of(default_of(function, name), module) if known is None else known[name]


def _others_given(values: Values, function: Function, module: Module, call: ast.Call) -> Any:
    """Return the arguments that a call gives by names which are no parameters: those of `**kwargs`."""
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        value = values.of(keyword.value, module)
        if keyword.arg is None and not isinstance(value, dict):
            return UNKNOWN
        found |= value if keyword.arg is None else {keyword.arg: value}
    own = parameters(function)
    return {name: value for name, value in found.items() if name not in own}


def _set_in(values: Values, name: str, mapping: ast.expr, module: Module) -> list[ast.Attribute]:
    """Return where a function sets an entry of a mapping that it gives on as `**c`: `c.batch_size = 64`."""
    scope, owner = module.scope_of(mapping), spelled(mapping)
    places = [place for home, place in values.program.attribute_stores.get(name, ()) if home is module]
    return [place for place in places if owner and spelled(place.value) == owner and module.scope_of(place) is scope]


def _is_called_as_written(function: Function) -> bool:
    """Return whether no decorator may give a function other arguments than its calls do."""
    decorators = (spelled(one.func if isinstance(one, ast.Call) else one) for one in function.decorator_list)
    return all(one.rpartition(".")[2] in _HARMLESS_DECORATORS for one in decorators)


def _is_click_command(values: Values, function: Function) -> bool:
    """Return whether click calls a function with the values of its options: as its only command, or the chosen one."""
    decorators = [one.func for one in function.decorator_list if isinstance(one, ast.Call)]
    return "click.command" in map(spelled, decorators) or command_of(function) in values.facts.argv[:1]


def command_of(function: Function) -> str:
    """Return the name of the subcommand that a function is: of `@cli.command("fit")`, `fit`; empty if it is none."""
    for one in function.decorator_list:
        match one:
            case ast.Call(func=ast.Attribute(attr="command", value=ast.Name(id=group)), args=given):
                named = given[0].value if given and isinstance(given[0], ast.Constant) else None
                name = named if isinstance(named, str) else function.name.replace("_", "-")
                return "" if group in ("click", "typer") else name
    return ""
