"""Training that calls the model inside a wrapper, past the wrapper."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from jobsubmit.check.code import ACCELERATOR, Code, trains
from jobsubmit.check.models.gradients import averages_all
from jobsubmit.check.models.state import OWN_NAMES
from jobsubmit.check.origins import last_value, seen_through
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import (
    FUNCTIONS,
    Definition,
    Function,
    Module,
    class_around,
    returned_values,
    spelled,
    unparsed,
)
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters, values_of_field
from jobsubmit.check.wrapper import is_prepare, is_wrapped, names_of_wrappers
from jobsubmit.common.finding import Finding

_WITHOUT = re.compile(r"(?:without|wo)_(?:ddp|parallel)$")
OPTIMIZER = re.compile(r"optim|opt\b|scaler|adam|sgd")
_NO_TRAINING = re.compile(r"val|eval|test|infer|predict|sample|generate|save")


def inner_called(code: Code) -> Iterator[Finding]:
    """Yield a warning where training calls `model.module(x)`, past the wrapper."""
    prepared = _prepared(code)
    if not (code.wraps_models or prepared) or averages_all(code):
        return
    names = {
        target.id
        for _, node in code.program.of(ast.Assign)
        for target in node.targets
        if is_inner(_chosen(code, node.value)) and isinstance(target, ast.Name)
    }
    for module, call, _ in code.reached.calls:
        is_variable = isinstance(call.func, ast.Name) and call.func.id in names
        inner = last_value(call.func, module) if is_variable else call.func  # type: ignore[arg-type] # it is a name
        inner = _chosen(code, inner) if isinstance(inner, ast.IfExp) else inner
        if (known := _inner_with_method(code, call, module) or _inner_kept(code, call, module)) is not None:
            inner = known
        elif not (is_inner(inner) and (call.args or call.keywords)):
            inner = _inner_made(code, call, module) or _inner_given(code, call, module)
        if (
            not isinstance(inner, ast.Attribute)
            or not (code.wraps_models or unparsed(inner.value) in prepared)
            or _is_own_field(code, inner, module)
            or not (_is_of_training(code, call, module) or _calls_training(code, call, module))
            or _is_called_too(code, inner.value, call, module)
            or _is_for_wrapper(call, inner.value, module)
            or getattr(module.parents.get(call), "attr", "") == "detach"
            or code.is_past_wrapper(call) is False
        ):
            continue
        above = list(module.above(call))
        texts = [unparsed(item) for node in above if isinstance(node, ast.With) for item in node.items]
        texts += [unparsed(node.test) for node in above if isinstance(node, (ast.If, ast.IfExp))]
        if not any(word in text for text in texts for word in ("no_grad", "inference_mode", "module", "Parallel")):
            yield Finding(
                "warning",
                "bypassed",
                module.where(call),
                f"{unparsed(inner)} is the model inside the wrapper: the gradients are not averaged, and each "
                "process trains a model of its own",
                f"call {unparsed(inner.value)}",
            )
            return


def _prepared(code: Code) -> set[str]:
    """Return what the code gives to Accelerator.prepare(), which wraps the models among it."""
    calls = [call for _, call, _ in code.reached.calls if is_prepare(call)] if any(code.calls(ACCELERATOR)) else []
    return {unparsed(given) for call in calls for given in call.args}


def _is_own_field(code: Code, inner: ast.Attribute, module: Module) -> bool:
    """Return whether `self.module` is a field that the class around sets itself: the stage of a pipeline."""
    owner = class_around(inner, module) if spelled(inner) == "self.module" else None
    stores = code.program.attribute_stores.get("module", ())
    return owner is not None and any(class_around(store, home) is owner for home, store in stores)


def called_by_name(code: Code) -> Iterator[Finding]:
    """Yield a warning where training calls a model whose name says that it is without its wrapper."""
    if "DistributedDataParallel" not in code.names or not code.is_parallel or averages_all(code):
        return
    for module, call, _ in code.reached.calls:
        if (given := _given_without(code, call, module)) is not None:
            yield Finding(
                "warning",
                "bypassed",
                module.where(call),
                f"{spelled(call.func)}() gets {spelled(given)}, the model without its wrapper: the gradients are not "
                "averaged, and each process trains a model of its own",
                "pass the wrapper",
            )
            return
        function = module.function_of(call)
        if (
            function is None
            or not call.args
            or not _WITHOUT.search(spelled(call.func))
            or _NO_TRAINING.search(function.name)
        ):
            continue
        texts = [unparsed(one) for one in function.decorator_list]
        texts += [unparsed(one.items[0]) for one in module.above(call) if isinstance(one, ast.With)]
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


def _given_without(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return what a call gives to a function that trains and that calls it: only a model without its wrapper."""
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    found = code.program.called(call, module) if any(_WITHOUT.search(spelled(one)) for one in given) else None
    if found is None or not may_train(found[1]) or not (trains(found[1]) or "train" in found[1].name):
        return None
    if any(is_wrapped(code, one, module) for one in given):
        return None
    called = {spelled(node.func) for node in walk(found[1]) if isinstance(node, ast.Call)}
    models = [given_for(call, found[1], name) for name in called & parameters(found[1])]
    return next((one for one in models if one is not None and _WITHOUT.search(spelled(one))), None)


def _inner_with_method(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper if a call is one of a method that it has: `model.module.encode(x)`."""
    method = call.func
    if not isinstance(method, ast.Attribute) or not call.args or method.attr in OWN_NAMES:
        return None
    methods = [one for _, _, one in code.program.methods.get(method.attr, ())]
    if isinstance(module.parents.get(call), ast.Expr) and not any(map(trains, methods)):
        return None  # nothing takes its result, and it trains nothing itself: `model.module.update_average(0.99)`
    home, inner = _inner_read(code, method.value, module)
    if inner is None and isinstance(method.value, ast.Name) and method.attr in code.program.methods:
        made = _unwrapped(code, method.value, module)
        return made if made is not None and _is_inside(code, made, method.value, module) else None
    if inner is None or method.attr not in code.program.methods:
        return None
    return inner if is_wrapped(code, inner.value, home) is True else None


def _inner_read(code: Code, node: ast.expr, module: Module) -> tuple[Module, ast.Attribute | None]:
    """Return the model inside a wrapper that an expression is, itself or by a property that only returns it."""
    if isinstance(node, ast.Attribute) and not is_inner(node) and (found := code.program.property_of(node)):
        returned = returned_values(found[1])
        module, node = found[0], _chosen(code, returned[0]) if len(returned) == 1 else node
    return module, node if isinstance(node, ast.Attribute) and is_inner(node) else None


def _chosen(code: Code, node: ast.expr) -> ast.expr:
    """Return what is the case with several processes: `m.module` of `m.module if world_size > 1 else m`."""
    if isinstance(node, ast.IfExp) and code.is_parallel:
        return next((one for one in (node.body, node.orelse) if is_inner(one)), node)
    return node


def _inner_kept(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper if a call is one of a field that is only set to it: `self.net = x.module`."""
    if not isinstance(call.func, ast.Attribute) or spelled(call.func.value) != "self" or not call.args:
        return None
    values = values_of_field(code.program, call.func.attr)
    inner = values[0][1] if len(values) == 1 else None
    is_kept = isinstance(inner, ast.Attribute) and is_inner(inner) and is_wrapped(code, inner.value, values[0][0])
    return inner if isinstance(inner, ast.Attribute) and is_kept else None


def _inner_made(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper if a call is one of it: of `net = unwrap(model)`, or `unwrap(model)(x)`."""
    is_made = isinstance(call.func, (ast.Name, ast.Call)) and call.args
    inner = _unwrapped(code, call.func, module) if is_made else None
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
    if not any(is_inner(one) or isinstance(one, ast.Name) for one in given_all):
        return None
    for function in filter(may_train, _functions_called(code, call, module)):
        nodes = (node for node in walk(function) if isinstance(node, ast.Call))
        called = {node.func.id for node in nodes if isinstance(node.func, ast.Name)}
        for parameter in called & parameters(function):
            given = given_for(call, function, parameter)
            inner = _unwrapped(code, given, module)
            if inner is not None and given is not None and _is_inside(code, inner, given, module):
                return inner
    return _inner_for_loss(code, call, module)


def _inner_for_loss(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper that something unknown makes a loss of: `loss = losses(model.module, x)`."""
    statement = module.parents.get(call)
    target = unparsed(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    if "loss" not in target or _functions_called(code, call, module):
        return None
    inner = (one for one in call.args if isinstance(one, ast.Attribute) and is_inner(one))
    return next((one for one in inner if is_wrapped(code, one.value, module)), None)


def _functions_called(code: Code, call: ast.Call, module: Module) -> list[Definition]:
    """Return the function that is called; of an object whose class is not known, all methods of that name."""
    if (found := code.program.called(call, module)) is not None:
        return [found[1]]
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return [method for _, _, method in code.program.methods.get(name, ())]


def _unwrapped(code: Code, node: ast.AST | None, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper that an expression is: `model.module`, or a variable set to that."""
    made = seen_through(node, module)
    made = _chosen(code, made) if isinstance(made, ast.IfExp) else made
    if isinstance(node, ast.Name) and made is None:
        return _inner_if_wrapped(code, node, module)
    if isinstance(made, ast.Attribute):
        return made if is_inner(made) else None
    found = code.program.called(made, module) if isinstance(made, ast.Call) else None
    if found is None or not isinstance(made, ast.Call) or len(made.args) != 1:
        return None
    returns = [one.value for one in walk(found[1]) if isinstance(one, ast.Return) and one.value is not None]
    names = {one.id for one in returns if isinstance(one, ast.Name)}
    returns += [
        one.value
        for one in walk(found[1])
        if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") in names
    ]
    is_unwrapping = any(is_inner(part) for value in returns for part in walk(value))
    return ast.Attribute(made.args[0], "module", ast.Load()) if is_unwrapping else None


def _inner_if_wrapped(code: Code, name: ast.Name, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper that a variable holds where several processes train: `net = model.module`.

    Before, it is the model itself: `net = model`, and `if distributed: model = DDP(model); net = model.module`.
    """
    stores = module.stores.get((module.scope_of(name), name.id), ())
    values = [assigned_to(store, module) for store in stores if code.reached.of(store, module)]
    inner = [value for value in values if isinstance(value, ast.Attribute) and is_inner(value)]
    names = {spelled(one.value) for one in inner}
    is_same = all(value in inner or (value is not None and spelled(value) in names) for value in values)
    return inner[0] if len(inner) == 1 and is_same and code.is_parallel else None


def is_inner(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "module"


def _is_of_training(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call is in a function that computes gradients, or in one that such a function calls."""
    scope = module.scope_of(call)
    if trains(scope):
        return True
    if not may_train(scope):
        return False
    users = [
        (home, user)
        for home, user, _ in code.reached.calls
        if unparsed(user.func).rpartition(".")[2] == scope.name and home is module
    ]
    scopes = [home.scope_of(user) for home, user in users]
    return bool(scopes) and all(isinstance(one, FUNCTIONS) and trains(one) for one in scopes)


def _calls_training(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call enters a function that trains by its name: `train_one_epoch(model, …)`."""
    found = code.program.called(call, module)
    return found is not None and may_train(found[1]) and "train" in found[1].name


def may_train(node: ast.AST) -> TypeGuard[Function]:
    """Return whether a node is a function which neither its name nor a decorator says that it does not train."""
    return isinstance(node, FUNCTIONS) and not _NO_TRAINING.search(node.name) and not node.decorator_list


def _is_called_too(code: Code, wrapper: ast.expr, call: ast.Call, module: Module) -> bool:
    """Return whether the wrapper itself is called before the same step, with gradients: then that may average them."""
    spelled_so = unparsed(wrapper)
    statements: list[ast.AST] = [*_until_step(call, module)] or [module.scope_of(call)]
    calls = (node for one in statements for node in walk(one) if isinstance(node, ast.Call))
    calls = (one for one in calls if unparsed(one.func) == spelled_so and code.reached.of(one, module))
    return any(not without_gradients(one, module) and not module.excludes(one, call) for one in calls)


def _is_for_wrapper(call: ast.Call, wrapper: ast.expr, module: Module) -> bool:
    """Return whether what a call makes is given to a function together with the wrapper, as a batch is."""
    statement = module.parents.get(call)
    made = {unparsed(one) for one in statement.targets} if isinstance(statement, ast.Assign) else set()
    calls = (node for node in walk(module.scope_of(call)) if isinstance(node, ast.Call) and len(node.args) > 1)
    return any(unparsed(wrapper) in given and made & given for given in ({*map(unparsed, one.args)} for one in calls))


def _until_step(call: ast.Call, module: Module) -> list[ast.stmt]:
    """Return the statements of the innermost block around a call that also steps after it, up to this step."""
    inner: ast.AST = call
    for above in module.above(call):
        for body in (getattr(above, name, None) for name in ("body", "orelse")):
            if isinstance(body, list) and inner in body:
                begin = body.index(inner)
                ends = (place for place, one in enumerate(body) if place > begin and _steps(one))
                if (end := next(ends, None)) is not None:
                    return body[: end + 1]
        if isinstance(above, FUNCTIONS):
            break
        inner = above
    return []


def _steps(statement: ast.stmt) -> bool:
    """Return whether an optimizer, or a scaler with one, updates a model in a statement."""
    calls = (node for node in walk(statement) if isinstance(node, ast.Call))
    owners = (one.func.value for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "step")
    return any(OPTIMIZER.search(unparsed(one).lower()) for one in owners)


def without_gradients(node: ast.AST, module: Module) -> bool:
    """Return whether a node is in a block in which no gradients are computed."""
    withs = (item for above in module.above(node) if isinstance(above, ast.With) for item in above.items)
    return any(word in unparsed(item) for item in withs for word in ("no_grad", "inference_mode"))
