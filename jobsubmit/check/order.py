"""In which order a scope comes to some calls, itself or by the functions that it calls."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from jobsubmit.check.code import Code
from jobsubmit.check.program.module import Function, Module, class_around, own_method, unparsed
from jobsubmit.check.program.tree import walk

_DEEPEST = 3


class Place(NamedTuple):
    """Where a scope comes to something: `call` is in the scope, `inner` is what it leads to."""

    call: ast.Call
    inner: ast.Call
    home: Module


def position(place: Place) -> tuple[int, int]:
    """Return where a call ends: what stands in its arguments is called before it."""
    return place.call.end_lineno or 0, place.call.end_col_offset or 0


def by_scope(calls: Iterable[tuple[Module, ast.Call]]) -> Collection[list[tuple[Module, ast.Call]]]:
    """Return the calls of each function, and of each module outside of its functions."""
    scopes: dict[ast.AST, list[tuple[Module, ast.Call]]] = {}
    for module, call in calls:
        scopes.setdefault(module.scope_of(call), []).append((module, call))
    return scopes.values()


def leading_to(
    code: Code, calls: list[tuple[Module, ast.Call]], wanted: Collection[ast.Call], *, of_some_rank: bool = False
) -> list[Place]:
    """Return the calls of a scope that surely lead to one of some calls, in their order; perhaps of some ranks only."""
    found = ((call, next(_reach(code, call, module, wanted, 0, of_some_rank), None)) for module, call in calls)
    return sorted((Place(call, *inner) for call, inner in found if inner), key=position)


def _reach(
    code: Code, call: ast.Call, module: Module, wanted: Collection[ast.Call], depth: int, of_some_rank: bool
) -> Iterator[tuple[ast.Call, Module]]:
    if call in wanted:
        yield call, module
    found = _function_of(code, call, module) if depth < _DEEPEST else None
    if found is None:
        return
    home, function = found
    for inner in (node for node in walk(function) if isinstance(node, ast.Call)):
        if home.function_of(inner) is not function:
            continue
        if code.reached.is_sure(inner, home) or (of_some_rank and _is_of_some_rank(code, inner, home)):
            yield from _reach(code, inner, home, wanted, depth + 1, of_some_rank)


def _is_of_some_rank(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether only conditions on the rank decide which ranks come to a call."""
    conditions = [above for above in module.above(call) if isinstance(above, ast.If)]
    return (
        bool(conditions)
        and all("rank" in unparsed(one.test) for one in conditions)
        and (code.reached.is_sure(conditions[-1], module) and bool(code.reached.of(call, module)))
    )


def _function_of(code: Code, call: ast.Call, module: Module) -> tuple[Module, Function] | None:
    """Return the function that a call surely enters: of a class, what makes its objects; of an object, its method."""
    found = code.program.definition(code.program.name_of(call.func, module))
    if found is not None and not isinstance(found[1], ast.ClassDef):
        return found[0], found[1]
    if found is not None:
        return _method(found[0], found[1], "__init__")  # type: ignore[arg-type] # it is a class
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return None
    owner: tuple[Module, ast.AST] | None = None
    if call.func.value.id == "self":
        around = class_around(call, module)
        owner = (module, around) if around is not None else None
    elif len(made := module.assigned_calls.get(call.func.value.id, ())) == 1:
        owner = code.program.definition(code.program.name_of(made[0].func, module))
    is_class = owner is not None and isinstance(owner[1], ast.ClassDef)
    return _method(*owner, call.func.attr) if owner is not None and is_class else None  # type: ignore[arg-type]


def _method(module: Module, owner: ast.ClassDef, name: str) -> tuple[Module, Function] | None:
    found = own_method(owner, name)
    return None if found is None else (module, found)
