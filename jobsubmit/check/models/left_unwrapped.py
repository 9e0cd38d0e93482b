"""Models that an optimizer trains beside wrapped ones, and that nothing wraps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.interpreter.process import is_optimizer
from jobsubmit.check.models.unsynchronized import averages_itself
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.objects import SAME_MODEL
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, values_of_field
from jobsubmit.check.wrapper import MODELS, is_wrapped
from jobsubmit.common.finding import Finding

_PARAMETERS = ("parameters", "named_parameters")


class _Trained(NamedTuple):
    """A model whose parameters an optimizer gets, where it gets them."""

    optimizer: ast.Call
    module: Module
    model: ast.Name | ast.Attribute


def left_unwrapped(code: Code) -> Iterator[Finding]:
    """Yield a warning for a model that an optimizer trains, if it is not wrapped and others are."""
    trained = list(_trained(code))
    if not any(is_wrapped(code, one.model, one.module) for one in trained) or averages_itself(code):
        return
    for one in trained:
        if is_wrapped(code, one.model, one.module) is False and _is_apart(code, one):
            name = spelled(one.model)
            yield Finding(
                "warning",
                "never-synchronized",
                one.module.where(one.optimizer),
                f"the optimizer also trains {name}, which nothing wraps in DistributedDataParallel: each process "
                f"trains a {name} of its own",
                f"wrap {name} as well",
            )
            return


def _trained(code: Code) -> Iterator[_Trained]:
    for module, call, name in code.reached.calls:
        given = argument(call, "params", 0) if is_optimizer(name) else None
        for home, part in origins(code, given, module) if given is not None else ():
            for node in walk(part):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in _PARAMETERS
                ):
                    if isinstance(node.func.value, (ast.Name, ast.Attribute)):
                        yield _Trained(call, home, node.func.value)


def _is_apart(code: Code, one: _Trained) -> bool:
    """Return whether a model is made on its own, and handed to nothing that may wrap it or have it as its part."""
    if isinstance(one.model, ast.Name):
        stores = one.module.stores.get((one.module.scope_of(one.model), one.model.id), ())
        values = [assigned_to(store, one.module) for store in stores if code.reached.of(store, one.module)]
    else:
        values = [value for _, value in values_of_field(code.program, one.model.attr)]
    if not values or not all(isinstance(value, ast.Call) and _makes_model(code, value, one) for value in values):
        return False
    name = spelled(one.model)
    for module, call, called in code.program.calls:
        if module is not one.module:
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(spelled(inner) == name for part in given for inner in _items(part)) and _may_hold(code, call, called):
            return False
    return True


def _items(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an argument, or the items of a list or a mapping."""
    yield node
    if isinstance(node, (ast.List, ast.Tuple)):
        yield from node.elts
    elif isinstance(node, ast.Dict):
        yield from node.values


def _makes_model(code: Code, call: ast.Call, one: _Trained) -> bool:
    """Return whether a call makes a model, or returns one that it is called of, as `.to(device)` does."""
    made: ast.expr = call
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in SAME_MODEL:
        made = made.func.value
    if spelled(made) == spelled(one.model):
        return True
    name = code.program.name_of(made.func, one.module) if isinstance(made, ast.Call) else ""
    found = code.program.definition(name) if name else None
    return name.startswith(MODELS) if found is None else isinstance(found[1], ast.ClassDef)


def _may_hold(code: Code, call: ast.Call, name: str) -> bool:
    """Return whether a call makes an object that may have a model as its part, or may wrap it."""
    found = code.program.definition(name)
    is_unknown = found is None and not name.startswith("torch.") and not isinstance(call.func, ast.Attribute)
    is_layer = name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper()
    return is_ddp(name) or is_layer or is_unknown or (found is not None and isinstance(found[1], ast.ClassDef))
