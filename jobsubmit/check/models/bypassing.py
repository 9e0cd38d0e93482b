"""Training that calls the model inside a wrapper, past the wrapper."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from jobsubmit.check.code import Code, is_ddp, trains
from jobsubmit.check.models.state import OWN_NAMES
from jobsubmit.check.origins import last_value, seen_through
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, class_around, returned_values, spelled
from jobsubmit.check.program.variables import assigned_to, parameters, values_of_field
from jobsubmit.check.wrapper import is_wrapped, names_of_wrappers
from jobsubmit.common.finding import Finding

_WITHOUT = re.compile(r"(?:without|wo)_(?:ddp|parallel)$")
_NO_TRAINING = re.compile(r"val|eval|test|infer|predict|sample|generate|save")


def inner_called(code: Code) -> Iterator[Finding]:
    """Yield a warning where training calls `model.module(x)`, past the wrapper."""
    if not code.wraps_models:
        return
    names = {
        target.id
        for _, node in code.program.of(ast.Assign)
        for target in node.targets
        if _is_inner(node.value) and isinstance(target, ast.Name)
    }
    for module, call, _ in code.reached.calls:
        is_variable = isinstance(call.func, ast.Name) and call.func.id in names
        inner = last_value(call.func, module) if is_variable else call.func  # type: ignore[arg-type] # it is a name
        if (known := _inner_with_method(code, call, module) or _inner_kept(code, call, module)) is not None:
            inner = known
        elif not (_is_inner(inner) and call.args):
            inner = _inner_made(code, call, module) or _inner_given(code, call, module)
        if (
            not isinstance(inner, ast.Attribute)
            or not (_is_of_training(code, call, module) or _calls_training(code, call, module))
            or _is_called_too(inner.value, call, module)
        ):
            continue
        above = list(module.above(call))
        texts = [ast.unparse(item) for node in above if isinstance(node, ast.With) for item in node.items]
        texts += [ast.unparse(node.test) for node in above if isinstance(node, (ast.If, ast.IfExp))]
        if not any(word in text for text in texts for word in ("no_grad", "inference_mode", "module", "Parallel")):
            yield Finding(
                "warning",
                "bypassed",
                module.where(call),
                f"{ast.unparse(inner)} is the model inside the wrapper: the gradients are not averaged, and each "
                "process trains a model of its own",
                f"call {ast.unparse(inner.value)}",
            )
            return


def called_by_name(code: Code) -> Iterator[Finding]:
    """Yield a warning where training calls a model whose name says that it is without its wrapper."""
    if "DistributedDataParallel" not in code.names or not code.is_parallel:
        return
    for module, call, _ in code.reached.calls:
        function = module.function_of(call)
        if (
            function is None
            or not call.args
            or not _WITHOUT.search(spelled(call.func))
            or _NO_TRAINING.search(function.name)
        ):
            continue
        texts = [ast.unparse(one) for one in function.decorator_list]
        texts += [ast.unparse(one.items[0]) for one in module.above(call) if isinstance(one, ast.With)]
        if any("no_grad" in text or "inference_mode" in text for text in texts):
            continue
        if trains(function) or "train" in function.name:
            yield Finding(
                "warning",
                "bypassed",
                module.where(call),
                f"{spelled(call.func)} is the model without its wrapper: the gradients are not averaged, and each "
                "process trains a model of its own",
                "call the wrapper",
            )
            return


def never_called(code: Code) -> Iterator[Finding]:
    """Yield a warning for a wrapper in a field of which only parameters are used, while another object calls its model.

    `self.model = DDP(diffusion.model)`, and the loss is what `diffusion` computes.
    """
    for module, call, name in code.reached.calls:
        statement = module.parents.get(call)
        field = statement.targets[0] if isinstance(statement, ast.Assign) else None
        inner = argument(call, "module", 0)
        if not is_ddp(name) or not isinstance(field, ast.Attribute) or not isinstance(inner, ast.Attribute):
            continue
        owner = class_around(field, module)
        if owner is None or spelled(field.value) != "self" or spelled(inner.value) == "self":
            continue
        raw = [
            (home, one)
            for home, one, _ in code.reached.calls
            if isinstance(one.func, ast.Attribute) and one.func.attr == inner.attr and class_around(one, home) != owner
        ]
        if raw and not any(_may_call(home, node, owner, inner) for home, node in _loads(code, field.attr)):
            yield Finding(
                "warning",
                "bypassed",
                raw[0][0].where(raw[0][1]),
                f"this calls {ast.unparse(inner)}, and nothing calls the wrapper around it ({module.where(call)}): the "
                "gradients are not averaged, and each process trains a model of its own",
                "let it call the wrapper",
            )
            return


def kept_aside(code: Code) -> Iterator[Finding]:
    """Yield a warning for a wrapper that nothing calls or gets, while training uses the model beside it.

    `self.ddp_model = DDP(self.model)`, and the loss is computed with `self.model`.
    """
    for module, call, name in code.reached.calls:
        statement = module.parents.get(call)
        kept = statement.targets[0] if isinstance(statement, ast.Assign) else None
        model = argument(call, "module", 0)
        if not is_ddp(name) or not isinstance(kept, (ast.Name, ast.Attribute)) or not spelled(kept):
            continue
        if not isinstance(model, (ast.Name, ast.Attribute)) or spelled(kept) == spelled(model):
            continue
        uses = [(home, node) for home, node in _uses_of(code, kept, module) if code.reached.of(node, home)]
        if not uses or any(not _is_of_parts(home, node) and not _never_calls(code, node, home) for home, node in uses):
            continue
        for home, node in _uses_of(code, model, module):
            if node is not model and _is_trained(code, node, home):
                yield Finding(
                    "warning",
                    "bypassed",
                    home.where(node),
                    f"this uses {spelled(model)}, and nothing calls the wrapper around it, {spelled(kept)} "
                    f"({module.where(call)}): the gradients are not averaged, and each process trains a model of its "
                    "own",
                    f"use {spelled(kept)}",
                )
                return


def _uses_of(
    code: Code, target: ast.Name | ast.Attribute, module: Module
) -> Iterator[tuple[Module, ast.Name | ast.Attribute]]:
    """Yield where a field of a class, or a variable of a function, is read."""
    if isinstance(target, ast.Attribute):
        owner = class_around(target, module)
        for home, read in _loads(code, target.attr):
            if spelled(read.value) != "self" or class_around(read, home) is owner:
                yield home, read
        return
    for node in ast.walk(module.scope_of(target)):
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load):
            yield module, node


def _is_of_parts(module: Module, node: ast.AST) -> bool:
    """Return whether a use of a wrapper is one of its parts, and no call of it: `.parameters()`, `.no_sync()`."""
    above = module.parents.get(node)
    return isinstance(above, ast.Attribute) and above.attr not in ("forward", "__call__", "join", "module")


def _never_calls(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a use of a wrapper is an argument of a function that only uses its parts or asks what it is."""
    call = module.parents.get(node)
    found = code.program.called(call, module) if isinstance(call, ast.Call) and node in call.args else None
    if found is None or not isinstance(call, ast.Call) or not isinstance(found[1], FUNCTIONS):
        return False
    names = [name for name in parameters(found[1]) if given_for(call, found[1], name) is node]
    uses = [one for one in ast.walk(found[1]) if isinstance(one, ast.Name) and one.id in names]
    return bool(names) and all(_is_of_parts(found[0], one) or _is_asked(found[0], one) for one in uses)


def _is_asked(module: Module, node: ast.AST) -> bool:
    """Return whether a use asks what class something is of: `isinstance(module, DistributedDataParallel)`."""
    call = module.parents.get(node)
    return isinstance(call, ast.Call) and spelled(call.func) == "isinstance"


def _is_trained(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a use of a model, which is called or given to something, is in a function that trains."""
    above = module.parents.get(node)
    call = module.parents.get(above) if isinstance(above, ast.keyword) else above
    is_given = isinstance(call, ast.Call) and not spelled(call.func).endswith("copy")
    scope = module.scope_of(node)
    is_training = trains(scope) and (isinstance(scope, ast.Module) or _may_train(scope))
    return is_given and is_training and bool(code.reached.of(node, module))


def _loads(code: Code, attribute: str) -> Iterator[tuple[Module, ast.Attribute]]:
    for module, node in code.program.of(ast.Attribute):
        if node.attr == attribute and isinstance(node.ctx, ast.Load):
            yield module, node


def _may_call(module: Module, node: ast.Attribute, owner: ast.ClassDef, inner: ast.Attribute) -> bool:
    """Return whether a use of a field may be one of the wrapper that trains: not where only its parts are used."""
    if node is inner:
        return False
    around = class_around(node, module)
    is_other = spelled(node.value) == "self" and around is not None and around is not owner
    above = module.parents.get(node)
    if isinstance(above, ast.Attribute):
        return above.attr in ("forward", "__call__", "join", "no_sync")
    return not is_other


def _inner_with_method(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper if a call is one of a method that it has: `model.module.encode(x)`."""
    method = call.func
    if not isinstance(method, ast.Attribute) or not call.args or method.attr in OWN_NAMES:
        return None
    home, inner = _inner_read(code, method.value, module)
    if inner is None or method.attr not in code.program.methods:
        return None
    return inner if is_wrapped(code, inner.value, home) is True else None


def _inner_read(code: Code, node: ast.expr, module: Module) -> tuple[Module, ast.Attribute | None]:
    """Return the model inside a wrapper that an expression is, itself or by a property that only returns it."""
    if isinstance(node, ast.Attribute) and not _is_inner(node) and (found := code.program.property_of(node)):
        returned = returned_values(found[1])
        module, node = found[0], _chosen(code, returned[0]) if len(returned) == 1 else node
    return module, node if isinstance(node, ast.Attribute) and _is_inner(node) else None


def _chosen(code: Code, node: ast.expr) -> ast.expr:
    """Return what is the case with several processes: `m.module` of `m.module if world_size > 1 else m`."""
    if isinstance(node, ast.IfExp) and code.is_parallel:
        return next((one for one in (node.body, node.orelse) if _is_inner(one)), node)
    return node


def _inner_kept(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper if a call is one of a field that is only set to it: `self.net = x.module`."""
    if not isinstance(call.func, ast.Attribute) or spelled(call.func.value) != "self" or not call.args:
        return None
    values = values_of_field(code.program, call.func.attr)
    inner = values[0][1] if len(values) == 1 else None
    is_kept = isinstance(inner, ast.Attribute) and _is_inner(inner) and is_wrapped(code, inner.value, values[0][0])
    return inner if isinstance(inner, ast.Attribute) and is_kept else None


def _inner_made(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper if a call is one of a variable set to it: `net = unwrap(model)`."""
    inner = _unwrapped(code, call.func, module) if isinstance(call.func, ast.Name) and call.args else None
    return inner if inner is not None and _is_inside(code, inner, call.func, module) else None


def _is_inside(code: Code, inner: ast.Attribute, node: ast.expr, module: Module) -> bool:
    """Return whether a variable set to `x.module` has the model inside a wrapper.

    Where that is not clear, a function that looks whether there is a wrapper says so.
    """
    known = is_wrapped(code, inner.value, module)
    is_asked = isinstance(seen_through(node, module), ast.Call)
    if known is None and is_asked:
        return spelled(inner.value).rpartition(".")[2] in names_of_wrappers(code)
    return bool(known)


def _inner_given(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper that a call gives to a function which calls it."""
    given_all = (*call.args, *(keyword.value for keyword in call.keywords))
    if not any(_is_inner(one) or isinstance(one, ast.Name) for one in given_all):
        return None
    found = code.program.called(call, module)
    if found is None or not _may_train(found[1]):
        return None
    called = {
        node.func.id for node in ast.walk(found[1]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for parameter in called & parameters(found[1]):
        given = given_for(call, found[1], parameter)
        inner = _unwrapped(code, given, module)
        if inner is not None and given is not None and _is_inside(code, inner, given, module):
            return inner
    return None


def _unwrapped(code: Code, node: ast.AST | None, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper that an expression is: `model.module`, or a variable set to that."""
    made = seen_through(node, module)
    if isinstance(node, ast.Name) and made is None:
        return _inner_if_wrapped(code, node, module)
    if isinstance(made, ast.Attribute):
        return made if _is_inner(made) else None
    found = code.program.called(made, module) if isinstance(made, ast.Call) else None
    if found is None or not isinstance(made, ast.Call) or len(made.args) != 1:
        return None
    returns = [one.value for one in ast.walk(found[1]) if isinstance(one, ast.Return) and one.value is not None]
    names = {one.id for one in returns if isinstance(one, ast.Name)}
    returns += [
        one.value
        for one in ast.walk(found[1])
        if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") in names
    ]
    is_unwrapping = any(_is_inner(part) for value in returns for part in ast.walk(value))
    return ast.Attribute(made.args[0], "module", ast.Load()) if is_unwrapping else None


def _inner_if_wrapped(code: Code, name: ast.Name, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper that a variable holds where several processes train: `net = model.module`.

    Before, it is the model itself: `net = model`, and `if distributed: model = DDP(model); net = model.module`.
    """
    stores = module.stores.get((module.scope_of(name), name.id), ())
    values = [assigned_to(store, module) for store in stores if code.reached.of(store, module)]
    inner = [value for value in values if isinstance(value, ast.Attribute) and _is_inner(value)]
    names = {spelled(one.value) for one in inner}
    is_same = all(value in inner or (value is not None and spelled(value) in names) for value in values)
    return inner[0] if len(inner) == 1 and is_same and code.is_parallel else None


def _is_inner(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "module"


def _is_of_training(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call is in a function that computes gradients, or in one that such a function calls."""
    scope = module.scope_of(call)
    if trains(scope):
        return True
    if not _may_train(scope):
        return False
    users = [
        (home, user)
        for home, user, _ in code.reached.calls
        if ast.unparse(user.func).rpartition(".")[2] == scope.name and home is module
    ]
    scopes = [home.scope_of(user) for home, user in users]
    return bool(scopes) and all(isinstance(one, FUNCTIONS) and trains(one) for one in scopes)


def _calls_training(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call enters a function that trains by its name: `train_one_epoch(model, …)`."""
    found = code.program.called(call, module)
    return found is not None and _may_train(found[1]) and "train" in found[1].name


def _may_train(node: ast.AST) -> TypeGuard[Function]:
    """Return whether a node is a function which neither its name nor a decorator says that it does not train."""
    return isinstance(node, FUNCTIONS) and not _NO_TRAINING.search(node.name) and not node.decorator_list


def _is_called_too(wrapper: ast.expr, call: ast.Call, module: Module) -> bool:
    """Return whether the wrapper itself is called in the same function: then the inner model may be meant."""
    spelled_so = ast.unparse(wrapper)
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func) == spelled_so for node in ast.walk(module.scope_of(call))
    )
