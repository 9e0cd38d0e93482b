"""The variables in which a program keeps what it has parsed."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace

from jobsubmit.check.parsers.argparse.indirect import changed, may_hold
from jobsubmit.check.parsers.argparse.others import assigned_variables, called, find_others, spawned
from jobsubmit.check.parsers.argparse.search import Search
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import Function, Module, returned_values
from jobsubmit.check.program.namespaces import Namespaces
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import Variable, assigned_to, parameters, variable_of

_LONGEST_WAY = 3  # from the function that parses to one that is given the arguments


def namespaces(search: Search, kept: Namespaces) -> Namespaces:
    """Return the supposed namespaces, or none if something that is executed changes them indirectly."""
    return Namespaces() if any(may_hold(node, kept, search, module) for module, node in changed(search)) else kept


def supposed_namespaces(search: Search) -> Namespaces:
    """Return the variables that hold the parsed arguments, unless the program changes them indirectly."""
    if any(_sets_defaults(node, module) for module, node in search.program.of(ast.Attribute)):
        return Namespaces()
    returning = {
        module.called_as(scope)
        for module, call, _ in search.parses
        for scope in module.above(call)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _returns_settings(scope, search, module)
    }
    parsed = _parsed(search, returning)
    if getters := set(_getters(search, parsed)):
        parsed = _parsed(search, returning | getters)
    assigned = list(assigned_variables(search))
    names = {target.id for _, target, value in assigned if value in parsed}
    for _ in range(_LONGEST_WAY):
        names |= {*_parameters(search, parsed, names), *_of_spawned(search, names)}
    kept = Namespaces(frozenset(names), find_others(search, assigned, parsed, names))
    more = frozenset(_other_names(search, kept))
    kept = replace(kept, more=more)
    fields = {
        f"self.{name}"
        for name, stores in search.program.attribute_stores.items()
        if all(_holds(assigned_to(store, module), kept, module) for module, store in stores)
    }
    return replace(kept, names=kept.names | fields)


def _holds(node: ast.AST | None, kept: Namespaces, module: Module) -> bool:
    return isinstance(node, ast.Name) and kept.hold(node, module)


def _other_names(search: Search, kept: Namespaces) -> Iterator[Variable]:
    """Yield the variables that are only set to others which hold the parsed arguments."""
    for module, node in search.program.of(ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id not in kept.names and _holds(node.value, kept, module):
            variable = variable_of(target, module)
            stores = module.own_stores.get(variable, ())
            if all(_holds(assigned_to(store, module), kept, module) for store in stores):
                yield variable


def _parsed(search: Search, returning: Collection[str]) -> set[ast.Call]:
    """Return the calls that parse arguments, themselves or in the functions and methods that return them."""
    parsing = {id(call) for _, call, _ in search.parses if not any(k.arg == "namespace" for k in call.keywords)}
    methods = set(_methods(search))
    return {
        call
        for module, call, name in search.program.calls
        if id(call) in parsing or name in returning or _is_one_of_methods(call, methods, search, module)
    }


def _getters(search: Search, parsed: set[ast.Call]) -> Iterator[str]:
    """Yield the functions that return a variable of their module in which another one keeps the parsed arguments.

    As those of Megatron do: `get_args()` returns what `set_args(args)` has kept.
    """
    kept = {
        target.id
        for _, node in search.program.of(ast.Assign)
        for target in node.targets
        if node.value in parsed and isinstance(target, ast.Name)
    }
    for module, declared in search.program.of(ast.Global):
        variables = {
            name
            for name in declared.names
            for target in module.stores.get((module.scope_of(declared), name), ())
            if isinstance(node := module.parents.get(target), ast.Assign)
            if node.value in parsed or _is_one_of(node.value, kept)
        }
        for function in module.definitions.values() if variables else ():
            returned = [] if isinstance(function, ast.ClassDef) else returned_values(function)
            if returned and all(_is_one_of(one, variables) for one in returned):
                yield f"{module.name}.{function.name}"


def _returns_settings(function: Function, search: Search, module: Module) -> bool:
    """Return whether a function that parses returns no arguments, but something else that it makes by a call."""
    sources: list[ast.expr | None] = []
    for value in returned_values(function):
        stores = module.own_stores.get((function, value.id), ()) if isinstance(value, ast.Name) else ()
        sources += [assigned_to(store, module) for store in stores] or [value]
    parsing = {call for _, call, _ in search.parses}
    return bool(sources) and all(isinstance(one, ast.Call) and parsing.isdisjoint(walk(one)) for one in sources)


def _is_one_of(node: ast.AST | None, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _methods(search: Search) -> Iterator[str]:
    """Yield the methods that parse the arguments, each the only one of its name."""
    for module, call, _ in search.parses:
        function = module.function_of(call)
        if function is not None and len(search.program.methods.get(function.name, ())) == 1:
            yield function.name


def _is_one_of_methods(call: ast.Call, methods: Collection[str], search: Search, module: Module) -> bool:
    """Return whether a call is one of these methods, and none of something that is imported."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in methods:
        return False
    is_of_library = search.program.is_of_library(call.func.value, module)
    return not is_of_library and search.program.definition(search.program.name_of(call.func, module)) is None


def _parameters(search: Search, parsed: set[ast.Call], kept: set[str]) -> Iterator[str]:
    """Yield the parameters of functions that are given parsed arguments in each call."""
    for name, calls in search.program.calls_of.items():
        function = called(search, name)
        if function is None:
            continue
        for parameter in parameters(function) - kept - {"self"}:
            given = [given_for(call, function, parameter) for _, call in calls]
            if all(value in parsed or (isinstance(value, ast.Name) and value.id in kept) for value in given):
                yield parameter


def _sets_defaults(node: ast.Attribute, module: Module) -> bool:
    """Return whether a method sets defaults of the parser that are not written down."""
    if node.attr != "set_defaults" or (isinstance(node.value, ast.Name) and node.value.id in module.aliases):
        return False
    call = module.parents.get(node)
    return not isinstance(call, ast.Call) or bool(call.args) or any(keyword.arg is None for keyword in call.keywords)


def _of_spawned(search: Search, kept: set[str]) -> Iterator[str]:
    """Yield the parameters of a function that mp.spawn starts with parsed arguments."""
    return (name for _, _, name, value in spawned(search) if isinstance(value, ast.Name) and value.id in kept)
