"""Variables that are called like those with the parsed arguments, and hold something else."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from jobsubmit.check.parsers.argparse.search import Search
from jobsubmit.check.program.calls import SPAWNS, argument, given_for
from jobsubmit.check.program.module import Function, Module, returned_values, spelled
from jobsubmit.check.program.variables import Variable, parameters, variable_of

_LONGEST_WAY = 3  # from a variable through functions that are given its value
_MADE = (ast.Call, ast.Subscript, ast.Dict, ast.DictComp)


class Assigned(NamedTuple):
    """A variable that is set, of several at once the first, and what it is set to."""

    home: Module
    target: ast.Name
    value: ast.expr


class Spawned(NamedTuple):
    """A parameter of a function that mp.spawn starts, and what it is given there."""

    home: Module
    function: Function
    parameter: str
    value: ast.expr


def assigned_variables(search: Search) -> Iterator[Assigned]:
    """Yield the variables that are set by what may be executed."""
    for home, node in search.program.of(ast.Assign):
        for target in node.targets if search.reached.of(node, home) else ():
            first, value = target, node.value
            if isinstance(target, ast.Tuple) and target.elts:
                first = target.elts[0]
                value = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
            if isinstance(first, ast.Name):
                yield Assigned(home, first, value)


def find_others(
    search: Search, assigned: Sequence[Assigned], parsed: Collection[ast.expr], names: Collection[str]
) -> frozenset[Variable]:
    """Return the variables of these names that hold something else than what is parsed."""
    places = {variable_of(root, home): call for home, call, root in _parsers(search)}
    own = [one for one in assigned if one.target.id in names]
    found: set[Variable] = set()
    for home, target, value in own:
        if value in parsed or not isinstance(value, _MADE):
            continue
        variable = variable_of(target, home)
        is_parser = variable in places and target.lineno < places[variable].lineno  # args = args.parse_args()
        if not (is_parser or _is_of_resumed(target, search, home) or _gives_back(value, names, search, home)):
            found.add(variable)
    for _ in range(_LONGEST_WAY if found else 0):
        found |= {*_assigned_on(own, found), *_handed_on(search, found, names), *_imported(search, found)}
    return frozenset(found)


def called(search: Search, name: str) -> Function | None:
    """Return the function that a name means: of a class, what makes its objects, without `self`."""
    found = search.program.definition(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return found[1] if found else None  # type: ignore[return-value] # it is no class
    made = (node for node in found[1].body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return next(made, None)


def spawned(search: Search) -> Iterator[Spawned]:
    """Yield the parameters of the functions that mp.spawn starts, but for the number of the process."""
    for spawn in SPAWNS:
        for module, call in search.program.calls_of.get(spawn, ()):
            started, given = argument(call, "fn", 0), argument(call, "args", 1)
            function = called(search, search.program.name_of(started, module)) if started is not None else None
            names = [one.arg for one in function.args.args[1:]] if function is not None else []
            for name, value in zip(names, getattr(given, "elts", ()), strict=False):
                if function is not None:
                    yield Spawned(module, function, name, value)


def _parsers(search: Search) -> Iterator[tuple[Module, ast.Call, ast.Name]]:
    """Yield the calls that parse, with the variable of the parser."""
    for home, call, _ in search.parses:
        root: ast.AST = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            yield home, call, root


def _assigned_on(assigned: Sequence[Assigned], others: Collection[Variable]) -> Iterator[Variable]:
    """Yield the variables that are set to others."""
    for home, target, value in assigned:
        if isinstance(value, ast.Name) and variable_of(value, home) in others:
            yield variable_of(target, home)


def _handed_on(search: Search, others: Collection[Variable], names: Collection[str]) -> Iterator[Variable]:
    """Yield the parameters that are given others."""
    for name, calls in search.program.calls_of.items():
        function = called(search, name)
        if function is None:
            continue
        for parameter in parameters(function).intersection(names):
            given = ((home, given_for(call, function, parameter)) for home, call in calls)
            if any(isinstance(one, ast.Name) and variable_of(one, home) in others for home, one in given):
                yield function, parameter
    for one in spawned(search):
        if one.parameter in names and isinstance(one.value, ast.Name) and variable_of(one.value, one.home) in others:
            yield one.function, one.parameter


def _imported(search: Search, others: Collection[Variable]) -> Iterator[Variable]:
    """Yield the names by which modules import others."""
    modules = search.program.modules.values()
    whole = {f"{module.name}.{name}" for module in modules for scope, name in others if scope is module.tree}
    last = {name.rpartition(".")[2] for name in whole}
    for module in modules if whole else ():
        for name in last & module.aliases.keys():
            if search.program.imported_from(module.name, name) in whole:
                yield module.tree, name


def _gives_back(value: ast.expr, names: Collection[str], search: Search, module: Module) -> bool:
    """Return whether a function returns the arguments that it is given: `args = prepare(args)`."""
    found = (
        search.program.definition(search.program.name_of(value.func, module)) if isinstance(value, ast.Call) else None
    )
    if found is None or isinstance(found[1], ast.ClassDef) or not isinstance(value, ast.Call):
        return False
    function = found[1]
    own = parameters(function)
    returned = {one.id if isinstance(one, ast.Name) else "" for one in returned_values(function)}
    is_kept = returned <= own and not any((function, name) in found[0].own_stores for name in returned)
    given = [given_for(value, function, name) for name in returned]
    return is_kept and bool(returned) and all(isinstance(one, ast.Name) and one.id in names for one in given)


def _is_of_resumed(node: ast.Name, search: Search, module: Module) -> bool:
    """Return whether arguments are set again only if one of them is given, such as --resume, and it is not."""
    inner: ast.AST = node
    for above in module.above(node):
        if isinstance(above, ast.If) and inner in above.body:
            tests = above.test.values if isinstance(above.test, ast.BoolOp) else [above.test]
            test = tests[0] if not isinstance(above.test, ast.BoolOp) or isinstance(above.test.op, ast.And) else None
            if isinstance(test, ast.Attribute) and spelled(test.value) == node.id:
                option = f"--{test.attr}"
                return not any(
                    word.replace("_", "-").startswith(option.replace("_", "-")) for word in search.values.facts.argv
                )
        inner = above
    return False
