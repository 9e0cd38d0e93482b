"""Models that an optimizer trains beside wrapped ones, and that nothing wraps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from jobsubmit.check.code import Code, is_ddp, is_sharding
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

# Layers of torch that may have parameters; a class of the program may be one.
_HAS_PARAMETERS = re.compile(r"^torch\.nn\.(?!\w*Loss$)[A-Z]\w*$|^(?!torch\.).*\.[A-Z]\w*$")
_KEEP_NOTHING = frozenset(["print", "len", "id", "isinstance", "type", "sum", "hasattr", "repr", "str", "next", "iter"])
_HOOKS = frozenset(["register_hook", "register_post_accumulate_grad_hook", "register_comm_hook"])
_PARAMETERS = ("parameters", "named_parameters")


class _Trained(NamedTuple):
    """A model whose parameters an optimizer gets, where it gets them."""

    optimizer: ast.Call
    module: Module
    model: ast.Name | ast.Attribute


def left_unwrapped(code: Code) -> Iterator[Finding]:
    """Yield a warning for a model that an optimizer trains, if it is not wrapped and others are."""
    trained = list(_trained(code))
    wrapped = [one for one in trained if is_wrapped(code, one.model, one.module) or _is_wrapped_later(code, one)]
    if not wrapped or _may_average(code):
        return
    for one in trained:
        if one not in wrapped and is_wrapped(code, one.model, one.module) is False and _is_apart(code, one):
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


def _is_wrapped_later(code: Code, one: _Trained) -> bool:
    """Return whether the same function wraps a model after it has given the optimizer its parameters."""
    wraps = [
        (home, argument(call, "module", 0), call)
        for home, call, name in code.reached.calls
        if home is one.module and is_ddp(name)
    ]
    return any(
        given is not None
        and spelled(given) == spelled(one.model)
        and home.scope_of(call) is one.module.scope_of(one.model)
        for home, given, call in wraps
    )


def _may_average(code: Code) -> bool:
    """Return whether gradients may be averaged in another way than by wrappers: by collectives, hooks or a library."""
    if averages_itself(code) or "grad" in code.program.attribute_stores or _HOOKS & code.names_in_use:
        return True
    return any(
        isinstance(above, ast.Call)
        and node in {inner for given in above.args for inner in walk(given)}
        and not code.program.name_of(above.func, module).startswith("torch.")
        and code.program.called(above, module) is None
        for module, node in code.program.of(ast.Attribute)
        if node.attr == "grad"
        for above in module.above(node)
    )


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
    uses = (node for node in one.module.of(type(one.model)) if spelled(node) == name)
    return all(_leaves_apart(code, node, one.module) for node in uses)


def _leaves_apart(code: Code, use: ast.expr, module: Module) -> bool:
    """Return whether a use of a model only calls it, asks it for something, or hands it to what does not keep it."""
    above = module.parents.get(use)
    if isinstance(above, ast.Attribute):
        return above.attr != "requires_grad_"
    if not isinstance(getattr(use, "ctx", None), ast.Load):
        return True
    while isinstance(above, (ast.List, ast.Tuple, ast.keyword)):
        above = module.parents.get(above)
    return isinstance(above, ast.Call) and (above.func is use or not _may_keep(code, above, module))


def _makes_model(code: Code, call: ast.Call, one: _Trained) -> bool:
    """Return whether a call makes a model with parameters, or returns the one that it is called of: `.to(device)`."""
    made: ast.expr = call
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in SAME_MODEL:
        made = made.func.value
    if spelled(made) == spelled(one.model):
        return True
    name = code.program.name_of(made.func, one.module) if isinstance(made, ast.Call) else ""
    found = code.program.definition(name) if name else None
    if found is None:
        return name.startswith(MODELS) and not name.endswith("Loss")
    inner = (code.program.name_of(node.func, found[0]) for node in walk(found[1]) if isinstance(node, ast.Call))
    return isinstance(found[1], ast.ClassDef) and any(map(_HAS_PARAMETERS.search, inner))


def _may_keep(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call makes an object that may have a model as its part, or may wrap it."""
    name = code.program.name_of(call.func, module)
    found = code.program.definition(name) or code.program.called(call, module)
    if found is not None:
        calls = (one for one in walk(found[1]) if isinstance(one, ast.Call))
        wraps = any(is_ddp(code.program.name_of(one.func, found[0])) for one in calls)
        return wraps or isinstance(found[1], ast.ClassDef)
    is_layer = name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper()
    is_method = isinstance(call.func, ast.Attribute) and not code.program.is_of_library(call.func.value, module)
    is_unknown = not name.startswith(("torch.", "apex.")) and not isinstance(call.func, ast.Attribute)
    is_unknown = is_unknown and name not in _KEEP_NOTHING
    return is_ddp(name) or is_sharding(name) or is_layer or is_method or is_unknown
