"""Variables that hold what Accelerator.prepare() returned."""

from __future__ import annotations

import ast

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.variables import parameters
from jobsubmit.check.wrapper import is_prepare


def holds_prepared(code: Code, name: ast.Name, module: Module) -> bool:
    """Return whether a variable was set by `prepare` last, or each call gives such a one for a parameter."""
    if given := given_names(code, name, module):
        return all(isinstance(one, ast.Name) and holds_prepared(code, one, home) for home, one in given)
    stores = [one for one in module.stores.get((module.scope_of(name), name.id), ()) if one.lineno < name.lineno]
    last = max(stores, key=lambda store: store.lineno, default=None)
    return last is not None and _is_set_by_prepare(last, module)


def given_names(code: Code, name: ast.Name, module: Module) -> list[tuple[Module, ast.expr | None]]:
    """Return what the calls of a function from elsewhere give for a parameter that is not set again."""
    function = module.function_of(name)
    if function is None or name.id not in parameters(function) or (function, name.id) in module.own_stores:
        return []
    calls = code.program.calls_to(function, module)
    return [
        (home, given_for(call, function, name.id))
        for home, call in calls
        if code.reached.of(call, home) and home.function_of(call) is not function
    ]


def _is_set_by_prepare(store: ast.Name, module: Module) -> bool:
    """Return whether a variable is set by `model, optimizer = accelerator.prepare(model, optimizer)`."""
    above = module.parents.get(store)
    statement = module.parents.get(above) if isinstance(above, ast.Tuple) else above
    call = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(call, ast.Call) or not is_prepare(call):
        return False
    place = above.elts.index(store) if isinstance(above, ast.Tuple) else 0
    return place < len(call.args) and spelled(call.args[place]) == store.id
