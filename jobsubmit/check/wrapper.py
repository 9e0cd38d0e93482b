"""Whether a variable holds a model inside DistributedDataParallel, or the model itself, where it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import Reach, given_for
from jobsubmit.check.program.module import (
    FUNCTIONS,
    Function,
    Module,
    class_around,
    own_method,
    returned_values,
    unparsed,
)
from jobsubmit.check.program.objects import SAME_MODEL
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters, position

_DEEPEST = 6
MODELS = ("torch.nn.", "torchvision.models.", "timm.", "transformers.")


class Wrapped(NamedTuple):
    """A model that is wrapped: `model` is its variable, `wrapper` that of the result."""

    call: ast.Call
    module: Module
    scope: Function | ast.Module
    model: ast.Name
    wrapper: str


def is_prepare(call: ast.Call) -> bool:
    """Return whether a call is one of the Accelerator's `prepare` or `prepare_data_loader`."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("prepare", "prepare_data_loader")


def is_wrapped(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool | None:
    """Return whether an expression is a wrapped model (True), or one that is not (False); None if it is not clear."""
    if depth > _DEEPEST:
        return None
    found: bool | None = None
    match node:
        case ast.Name():
            found = _variable(code, node, module, depth + 1)
        case ast.Attribute(value=ast.Name(id="self")):
            found = _attribute(code, node, module, depth + 1)
        case ast.Attribute(attr="module"):
            found = False if is_wrapped(code, node.value, module, depth + 1) else None
        case ast.Subscript(slice=ast.Constant(value=key)):
            entries = list(_entries(code, node.value, key, module))
            found = _agreed(is_wrapped(code, one, home, depth + 1) for home, one in entries)
        case ast.Call():
            found = _result(code, node, module, depth + 1)
        case ast.IfExp():
            truth = code.values.truth(node.test, module)
            if truth is not None:
                found = is_wrapped(code, node.body if truth else node.orelse, module, depth + 1)
    return found


def _entries(code: Code, mapping: ast.expr, key: object, module: Module) -> Iterator[tuple[Module, ast.expr]]:
    """Yield what mappings that are written down have under a key: `models["generator"]`."""
    for home, part in origins(code, mapping, module):
        for name, value in zip(part.keys, part.values, strict=True) if isinstance(part, ast.Dict) else ():
            if isinstance(name, ast.Constant) and name.value == key:
                yield home, value


def names_of_wrappers(code: Code) -> set[str]:
    """Return the names of all variables, fields and parameters that may hold a wrapped model, and some more."""
    names: set[str] = set()
    returned = list(_returned_names(code))
    given = [(call, {*map(_last_name, _arguments(call[1]))} - {""}) for call in code.program.calls]
    assigned = [(name, node) for _, node in code.program.of(ast.Assign) if (name := _last_name(node.value))]
    for _ in range(_DEEPEST):
        known = len(names)
        makers = {name for name, value in returned if value is None or value in names}
        for (module, call, name), own in given:
            if is_ddp(name) or name in makers:
                names |= _set_by(call, module)
            if not own.isdisjoint(names):
                names |= _set_by(call, module) | _named_like(code, call, module, names)
        for name, node in assigned:
            if name in names:
                names |= {_last_name(target) for target in node.targets}
        if len(names) == known:
            break
    return names - {""}


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _returned_names(code: Code) -> Iterator[tuple[str, str | None]]:
    """Yield the functions that return a variable, with its name, or a model that they wrap there, with None."""
    for module, node in code.program.of(ast.Return):
        function = module.function_of(node)
        if function is not None and node.value is not None:
            is_wrapping = isinstance(node.value, ast.Call) and is_ddp(code.program.name_of(node.value.func, module))
            yield module.called_as(function), None if is_wrapping else _last_name(node.value)


def _set_by(call: ast.Call, module: Module) -> set[str]:
    """Return the names that the statement of a call sets."""
    statement = next((above for above in module.above(call) if isinstance(above, ast.stmt)), None)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {_last_name(node) for target in targets for node in walk(target)}


def _named_like(code: Code, call: ast.Call, module: Module, names: set[str]) -> set[str]:
    """Return the parameters of the function of a call for which it gives something of these names."""
    found = code.program.definition(code.program.name_of(call.func, module))
    function = found[1] if found is not None else None
    if isinstance(function, ast.ClassDef):
        function = own_method(function, "__init__")
    if function is None:
        methods = code.program.methods.get(_last_name(call.func), ())
        function = methods[0][2] if len(methods) == 1 else None
    given = {} if function is None else {name: given_for(call, function, name) for name in parameters(function)}
    return {name for name, one in given.items() if one is not None and _last_name(one) in names}


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _result(code: Code, call: ast.Call, module: Module, depth: int) -> bool | None:
    """Return the same for what a call returns."""
    name = code.program.name_of(call.func, module)
    if is_ddp(name):
        return True
    if isinstance(call.func, ast.Attribute) and code.program.property_of(call.func) is not None:
        return None  # what the property returns is called
    if isinstance(call.func, ast.Attribute) and call.func.attr in SAME_MODEL:
        return is_wrapped(code, call.func.value, module, depth)
    found = code.program.definition(name) or code.program.called(call, module)
    if found is None:
        return False if name.startswith(MODELS) else None
    home, definition = found
    if isinstance(definition, ast.ClassDef):
        return False
    return _agreed(is_wrapped(code, value, home, depth) for value in returned_values(definition))


def _variable(code: Code, name: ast.Name, module: Module, depth: int) -> bool | None:
    for scope in (*(above for above in module.above(name) if isinstance(above, FUNCTIONS)), module.tree):
        stores = module.stores.get((scope, name.id), ())
        if isinstance(scope, FUNCTIONS) and name.id in parameters(scope) and not stores:
            return _agreed(is_wrapped(code, given, home, depth) for home, given in _given(code, scope, name.id, module))
        if stores:
            is_before = scope is module.scope_of(name)
            return _last_set(
                code, [store for store in stores if not is_before or _is_before(store, name, module)], module, depth
            )
    return None


def _given(code: Code, function: Function, parameter: str, module: Module) -> Iterator[tuple[Module, ast.AST]]:
    """Yield what each call of a function gives for a parameter."""
    is_nested = isinstance(module.parents.get(function), FUNCTIONS)
    name = function.name if is_nested else module.called_as(function)
    calls = code.program.calls_of.get(name, ())
    for home, call in code.program.calls_to(function, module) if function.name == "__call__" else calls:
        if code.reached.of(call, home) and (home is module or not is_nested):
            yield home, given_for(call, function, parameter) or ast.Constant(None)


def _attribute(code: Code, node: ast.Attribute, module: Module, depth: int) -> bool | None:
    """Return the same for an attribute of an object, set in one method of its class, or of one above it."""
    owner = class_around(node, module)
    stores = _stores_in(code, node.attr, owner, module)
    for base in owner.bases if owner is not None and not stores else ():
        above = code.program.definition(code.program.name_of(base, module))
        inherited = _stores_in(code, node.attr, above[1], above[0]) if above is not None else []
        if above is not None and inherited:
            return _last_set(code, inherited, above[0], depth) if _are_in_one(inherited, above[0]) else None
    if owner is None or not _are_in_one(stores, module):
        return None
    setters = {module.function_of(store) for store in stores}
    setter, own = setters.pop(), module.function_of(node)
    use: ast.AST | None = node
    if own is not setter:  # the setter may call the method of the use before it has set all
        calls = (one for one in walk(setter) if isinstance(one, ast.Call)) if setter else ()
        names = (one for one in calls if own is not None and unparsed(one.func) == f"self.{own.name}")
        use = next(names, None)
    before = [store for store in stores if use is None or _is_before(store, use, module)]
    return _last_set(code, before, module, depth)


def _stores_in(code: Code, attribute: str, owner: ast.AST | None, module: Module) -> list[ast.Attribute]:
    """Return where a class sets an attribute of its objects."""
    stores = (store for home, store in code.program.attribute_stores.get(attribute, ()) if home is module)
    return [one for one in stores if owner in set(module.above(one)) and unparsed(one.value) == "self"]


def _are_in_one(stores: Iterable[ast.Attribute], module: Module) -> bool:
    return len({module.function_of(store) for store in stores}) == 1


def _last_set(code: Code, stores: Iterable[ast.expr], module: Module, depth: int) -> bool | None:
    """Return the same for the last of the places that set something; None if it may not be executed."""
    reached = [store for store in stores if code.reached.of(store, module)]
    last = max(reached, key=lambda store: (store.lineno, store.col_offset), default=None)
    value = assigned_to(last, module) if last is not None else None
    if last is None or value is None:
        return None
    found = is_wrapped(code, value, module, depth)
    if code.reached.of(last, module) is Reach.SURELY or is_unconditional(last, module):
        return found
    if found and code.is_parallel and isinstance(value, ast.Call) and is_ddp(code.program.name_of(value.func, module)):
        return True  # what may wrap a model does it where there are several processes
    earlier = _last_set(code, [store for store in reached if store is not last], module, depth)
    return found if found == earlier else None


def is_unconditional(node: ast.AST, module: Module) -> bool:
    """Return whether nothing in the same function decides whether a node is executed."""
    for above in module.above(node):
        if isinstance(above, (ast.If, ast.IfExp, ast.Try, ast.For, ast.While)):
            return False
        if isinstance(above, FUNCTIONS):
            return True
    return True


def _is_before(store: ast.expr, use: ast.AST, module: Module) -> bool:
    """Return whether something is set before it is used, and not by the statement that uses it."""
    return position(store) < position(use) and module.parents.get(store) not in set(module.above(use))


def _agreed(found: Iterable[bool | None]) -> bool | None:
    """Return what all of some answers say; None where they differ."""
    answers = set(found)
    return answers.pop() if len(answers) == 1 else None
