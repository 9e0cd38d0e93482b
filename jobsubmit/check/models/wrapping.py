"""Models wrapped for several processes: on which device, in which order, and whether it is the wrapper that trains."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from jobsubmit.check.code import Code, is_ddp, trains
from jobsubmit.check.models.state import OWN_NAMES
from jobsubmit.check.models.wrapper import is_wrapped
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.modules import FUNCTIONS, Function, Module, spelled
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_DATA_PARALLEL = "torch.nn.DataParallel"
_ON_CPU = ("torch.nn.", "torchvision.models.")
_TO_DEVICE = ("to", "cuda", "to_empty")
_FREEZES = re.compile(r"requires_grad = False|requires_grad_\(False\)")
_NO_TRAINING = re.compile(r"val|eval|test|infer|predict|sample|generate|save")
_USES_INNER = ("forward", "__call__", "join", "no_sync", "train_batch")


class _Wrapped(NamedTuple):
    """A model that is wrapped: `model` is its variable, `wrapper` that of the result."""

    call: ast.Call
    module: Module
    scope: Function | ast.Module
    model: ast.Name
    wrapper: str


def check_wrapping(code: Code) -> Iterator[Finding]:
    """Yield what makes a wrapped model fail, or train as if it were not wrapped; the first of each kind."""
    if code.world_size == 1 or code.has_framework:
        return
    found = list(_wrapped(code))
    for check in (_on_cpu, _bypassed, _two_wrappers, _norms_too_late):
        yield from next(([finding] for one in found for finding in check(code, one)), [])
    thawed = (finding for one in found for finding in _thawed_later(code, one))
    yield from itertools.islice(itertools.chain(thawed, _thawed_in_loop(code), _thawed_inside(code)), 1)
    yield from itertools.islice(_made_on_cpu(code), 1)
    yield from itertools.islice(_nested(code), 1)
    yield from _inner_called(code)


def _wrapped(code: Code) -> Iterator[_Wrapped]:
    for module, call, name in code.reached.calls:
        if not is_ddp(name) or hides_arguments(call):
            continue
        model = argument(call, "module", 0)
        statement = module.parents.get(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(model, ast.Name):
            wrapper = target.id if isinstance(target, ast.Name) else ""
            yield _Wrapped(call, module, module.scope_of(call), model, wrapper)


def _on_cpu(code: Code, one: _Wrapped) -> Iterator[Finding]:
    """Yield an error where a model is wrapped for a GPU before it is moved there."""
    if not _is_for_gpu(code, one.call):
        return
    made = last_value(one.model, one.module)
    if made is not None and _is_on_cpu(code, made, one.module) and not _is_moved(one, made):
        yield Finding(
            code.level_of(one.call, one.module),
            "model-on-cpu",
            one.module.where(one.call),
            f"{one.model.id} is still on the CPU when DistributedDataParallel gets it, and the processes communicate "
            "on GPUs",
            f"move it first: {one.model.id}.to(local_rank)",
        )


def _is_for_gpu(code: Code, wrap: ast.Call) -> bool:
    """Return whether a model that is wrapped must be on a GPU, and nothing puts it there by default."""
    names_gpus = isinstance(argument(wrap, "device_ids", 1), ast.List)
    is_placed = code.places_by_default or "device_map" in code.names
    return code.facts.gpus != 0 and not is_placed and (names_gpus or code.is_on_nccl_only)


def _made_on_cpu(code: Code) -> Iterator[Finding]:
    """Yield an error where a model is made and wrapped at once: DDP(Net())."""
    for module, call, name in code.reached.calls:
        made = argument(call, "module", 0)
        is_at_once = is_ddp(name) and isinstance(made, ast.Call) and not hides_arguments(call)
        if is_at_once and _is_for_gpu(code, call) and _is_on_cpu(code, made, module):  # type: ignore[arg-type]
            yield Finding(
                code.level_of(call, module),
                "model-on-cpu",
                module.where(call),
                f"{ast.unparse(made)} is still on the CPU when DistributedDataParallel gets it, and the processes "  # type: ignore[arg-type]
                "communicate on GPUs",
                f"move it first: {ast.unparse(made)}.to(local_rank)",  # type: ignore[arg-type]
            )


def _nested(code: Code) -> Iterator[Finding]:
    """Yield a warning where DataParallel is around DistributedDataParallel, or made inside it."""
    for module, call, name in code.reached.calls:
        if name != _DATA_PARALLEL and not is_ddp(name):
            continue
        given = argument(call, "module", 0)
        inner = last_value(given, module) if isinstance(given, ast.Name) else given
        inner_name = code.program.name_of(inner.func, module) if isinstance(inner, ast.Call) else ""
        is_around = name == _DATA_PARALLEL and is_ddp(inner_name)
        if is_around or (is_ddp(name) and inner_name == _DATA_PARALLEL and isinstance(given, ast.Call)):
            yield Finding(
                "warning",
                "two-wrappers",
                module.where(call),
                "DataParallel and DistributedDataParallel together: each process would use all GPUs of its node",
                "remove DataParallel",
            )


def _is_on_cpu(code: Code, made: ast.expr, module: Module) -> bool:
    """Return whether an expression makes a model, and nothing in it names a device."""
    if not isinstance(made, ast.Call) or any("device" in (keyword.arg or "device") for keyword in made.keywords):
        return False
    name = code.program.name_of(made.func, module)
    if name.startswith(_ON_CPU):
        inner = (arg for arg in made.args if isinstance(arg, ast.Call))
        return not any(
            isinstance(node, ast.Attribute) and node.attr in _TO_DEVICE for arg in inner for node in ast.walk(arg)
        )
    found = code.program.definition(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return False
    if any(code.program.definition(code.program.name_of(base, found[0])) for base in found[1].bases):
        return False  # what it inherits may move it
    text = ast.unparse(found[1])
    return not any(word in text for word in ("cuda", "device", ".to("))


def _is_moved(one: _Wrapped, made: ast.expr) -> bool:
    """Return whether anything between the making of a model and its wrapping may move it."""
    for node in ast.walk(one.scope):
        if not isinstance(node, ast.Call) or not made.lineno <= node.lineno <= one.call.lineno or node is one.call:
            continue
        target = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(target, ast.Name) and target.id == one.model.id and node.func.attr in _TO_DEVICE:  # type: ignore[attr-defined]
            return True
        if any(isinstance(arg, ast.Name) and arg.id == one.model.id for arg in node.args):
            return True
    return any(isinstance(node, ast.With) and "device" in ast.unparse(node.items[0]) for node in ast.walk(one.scope))


def _bypassed(code: Code, one: _Wrapped) -> Iterator[Finding]:
    """Yield a warning where a model is trained by its own name, and its wrapper only gives parameters."""
    if not one.wrapper or one.wrapper == one.model.id:
        return
    loads = [node for node in ast.walk(one.scope) if is_load(node, one.wrapper)]
    if any(_may_train_by(code, node, one.module) for node in loads):
        return
    for node in ast.walk(one.scope):
        if isinstance(node, ast.Call) and node.lineno > one.call.lineno and is_load(node.func, one.model.id):
            if trains(one.module.scope_of(node)):
                yield Finding(
                    "warning",
                    "bypassed",
                    one.module.where(node),
                    f"{one.model.id} is called instead of {one.wrapper}, which wraps it: the gradients are not "
                    "averaged, and each process trains a model of its own",
                    f"call {one.wrapper}",
                )
                return


def _may_train_by(code: Code, name: ast.AST, module: Module) -> bool:
    """Return whether a use of a wrapper may train: it is called, or handed to what may call it in training."""
    above = module.parents.get(name)
    if isinstance(above, ast.Attribute):
        return above.attr in _USES_INNER
    call = module.parents.get(above) if isinstance(above, ast.keyword) else above
    found = None
    if isinstance(call, ast.Call) and call.func is not name:
        found = code.program.definition(code.program.name_of(call.func, module))
    return found is None or trains(found[1])


def is_load(node: ast.AST, name: str) -> bool:
    """Return whether a node reads a variable."""
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _two_wrappers(code: Code, one: _Wrapped) -> Iterator[Finding]:
    made = last_value(one.model, one.module)
    if isinstance(made, ast.Call) and code.program.name_of(made.func, one.module) == _DATA_PARALLEL:
        yield Finding(
            "warning",
            "two-wrappers",
            one.module.where(made),
            "DataParallel inside DistributedDataParallel: each process would use all GPUs of its node",
            "remove DataParallel",
        )


def _norms_too_late(code: Code, one: _Wrapped) -> Iterator[Finding]:
    for module, call, name in code.reached.calls:
        if not name.endswith(".convert_sync_batchnorm") or module is not one.module or not call.args:
            continue
        if one.wrapper and is_load(call.args[0], one.wrapper) and call.lineno > one.call.lineno:
            if module.scope_of(call) is one.scope:
                yield Finding(
                    "warning",
                    "two-wrappers",
                    module.where(call),
                    f"{one.wrapper} is wrapped already: its batch norms must be converted before "
                    "DistributedDataParallel gets the model",
                    f"convert {one.model.id} first, then wrap it",
                )


def _thawed_later(code: Code, one: _Wrapped) -> Iterator[Finding]:
    """Yield a warning where parameters are unfrozen after the wrapper has listed those to synchronize."""
    nodes = [node for node in ast.walk(one.scope) if isinstance(node, (ast.Assign, ast.Call))]
    own = [(node, value) for node in nodes if (value := _sets_gradient(code, node, one.module)) is not None]
    given = [(node, value) for node in nodes for value in _set_by_function(code, node, one)]
    frozen = [node for node, value in own if value is not True and node.lineno < one.call.lineno]
    frozen += [node for node, value in given if value is False and node.lineno < one.call.lineno]
    thawed = [node for node, value in (*own, *given) if value is True and node.lineno > one.call.lineno]
    if frozen:
        thawed += [node for node, value in given if value is UNKNOWN and node.lineno > one.call.lineno]
    if thawed and (frozen or _freezes_by_call(code, one)):
        yield Finding(
            "warning",
            "thawed-later",
            one.module.where(thawed[0]),
            "DistributedDataParallel does not synchronize parameters that were frozen when it got the model",
            "unfreeze them before, or wrap the model again",
        )


def _thawed_in_loop(code: Code) -> Iterator[Finding]:
    """Yield a warning where a method that unfreezes parameters is called in a certain epoch, after they were frozen."""
    if not code.wraps_models:
        return
    setters = [
        (method, home, value)
        for methods in code.program.methods.values()
        for home, _, method in methods
        for node in ast.walk(method)
        if (value := _sets_gradient(code, node, home)) in (True, False)
    ]
    names = {True: set[str](), False: set[str]()}
    for method, _, value in setters:
        names[bool(value)].add(method.name)
    calls = [
        (module, call, call.func.attr)
        for module, call, _ in code.reached.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in names[True] ^ names[False]
    ]
    frozen = [call for module, call, name in calls if name in names[False] and not _is_in_epoch(call, module)]
    for module, call, name in calls:
        if frozen and name in names[True] and _is_in_epoch(call, module):
            yield Finding(
                "warning",
                "thawed-later",
                module.where(call),
                "DistributedDataParallel does not synchronize parameters that were frozen when it got the model",
                "unfreeze them before, or wrap the model again",
            )


def _thawed_inside(code: Code) -> Iterator[Finding]:
    """Yield a warning where parameters are unfrozen through the wrapper: `model.module.backbone`."""
    set_to = [
        (module, node, value)
        for module, node in code.program.of(ast.Assign, ast.Call)
        if (value := _sets_gradient(code, node, module)) is not None and code.may_be_used(node, module)
    ]
    if not code.wraps_models or not any(value is False for _, _, value in set_to):
        return
    for module, node, value in set_to:
        scope = module.scope_of(node)
        wraps_again = any(
            isinstance(one, ast.Call) and is_ddp(code.program.name_of(one.func, module)) for one in ast.walk(scope)
        )
        if value is True and not wraps_again and ".module" in _owner(node, module):
            yield Finding(
                "warning",
                "thawed-later",
                module.where(node),
                "DistributedDataParallel does not synchronize parameters that were frozen when it got the model",
                "unfreeze them before, or wrap the model again",
            )


def _owner(node: ast.AST, module: Module) -> str:
    """Return whose gradients a statement switches, with what a loop around it goes through."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.func if isinstance(node, ast.Call) else node
    name = spelled(target).partition(".")[0]
    loops = (one for one in module.above(node) if isinstance(one, ast.For))
    through = (ast.unparse(one.iter) for one in loops if name in ast.unparse(one.target).split(", "))
    return " ".join((ast.unparse(target), *through))


def _is_in_epoch(call: ast.Call, module: Module) -> bool:
    """Return whether a call is in a loop, under a condition that compares: in a certain epoch, not in each."""
    above = list(module.above(call))
    is_looped = any(isinstance(one, (ast.For, ast.While)) for one in above)
    return is_looped and any(isinstance(one, ast.If) and isinstance(one.test, ast.Compare) for one in above)


def _set_by_function(code: Code, node: ast.AST, one: _Wrapped) -> Iterator[object]:
    """Yield what a call sets requires_grad of parameters to, in a function that is given the model, or its method."""
    found = _function_of_model(code, node, one) if isinstance(node, ast.Call) else None
    if found is None or not isinstance(node, ast.Call):
        return
    home, function = found
    own = {arg.arg for arg in function.args.args if _is_model(given_for(node, function, arg.arg), one)} | {"self"}
    for loop in (inner for inner in ast.walk(function) if isinstance(inner, ast.For)):
        if own & {name.id for name in ast.walk(loop.iter) if isinstance(name, ast.Name)}:
            own |= {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    for inner in ast.walk(function):
        target = inner.targets[0] if isinstance(inner, ast.Assign) else getattr(inner, "func", inner)
        value = _sets_gradient(code, inner, home, node, function) if spelled(target).partition(".")[0] in own else None
        if value is not None:
            yield value


def _is_model(node: ast.AST | None, one: _Wrapped) -> bool:
    """Return whether an expression is the model, the wrapper, or a part of it: `model.module.backbone`."""
    return node is not None and spelled(node).partition(".")[0] in {one.model.id, one.wrapper} - {""}


def _sets_gradient(
    code: Code, node: ast.AST, module: Module, call: ast.Call | None = None, function: Function | None = None
) -> object:
    """Return what a node sets requires_grad to; None for any other node. A parameter is what the call gives for it."""
    value: ast.expr | None = None
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        value = node.value if node.targets[0].attr == "requires_grad" else None
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        value = node.args[0] if node.args else ast.Constant(True)
    if value is None:
        return None
    if call is not None and function is not None and isinstance(value, ast.Name):
        return code.values.of(given_for(call, function, value.id) or value, module)
    return code.values.of(value, module)


def _function_of_model(code: Code, call: ast.Call, one: _Wrapped) -> tuple[Module, Function] | None:
    """Return the function of the program that a call gives the model to, or the method that it calls of the model."""
    models = {one.model.id, one.wrapper} - {""}
    found = code.program.definition(code.program.name_of(call.func, one.module))
    if found is None and isinstance(call.func, ast.Attribute):
        methods = code.program.methods.get(call.func.attr, ())
        is_of_model = ast.unparse(call.func.value).removesuffix(".module") in models
        return (methods[0][0], methods[0][2]) if is_of_model and len(methods) == 1 else None
    is_given = any(_is_model(arg, one) for arg in call.args)
    return found if is_given and found and not isinstance(found[1], ast.ClassDef) else None  # type: ignore[return-value]


def _freezes_by_call(code: Code, one: _Wrapped) -> bool:
    """Return whether a function that is called before the model is wrapped freezes parameters."""
    for call in (node for node in ast.walk(one.scope) if isinstance(node, ast.Call)):
        found = code.program.definition(code.program.name_of(call.func, one.module))
        if found is None or call.lineno >= one.call.lineno:
            continue
        made = [node for node in found[1].body if getattr(node, "name", "") == "__init__"]
        text = "\n".join(map(ast.unparse, made if isinstance(found[1], ast.ClassDef) else [found[1]]))
        is_told = any(isinstance(arg, ast.Constant) and arg.value is False for arg in call.args)
        if _FREEZES.search(text) or (is_told and "requires_grad" in text):
            return True
    return False


def _inner_called(code: Code) -> Iterator[Finding]:
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
        if _is_method_of_inner(code, call, module):
            inner = call.func.value  # type: ignore[attr-defined] # it is an attribute
        elif not (_is_inner(inner) and call.args):
            inner = _inner_made(code, call, module) or _inner_given(code, call, module)
        if (
            not isinstance(inner, ast.Attribute)
            or not _is_of_training(code, call, module)
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


def _is_method_of_inner(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a call is `model.module.encode(x)`: of a method that the program's model has."""
    method = call.func
    return (
        isinstance(method, ast.Attribute)
        and _is_inner(method.value)
        and bool(call.args)
        and method.attr in code.program.methods
        and method.attr not in OWN_NAMES
        and is_wrapped(code, method.value.value, module) is True  # type: ignore[attr-defined] # it is an attribute
    )


def _inner_made(code: Code, call: ast.Call, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper if a call is one of a variable set to it: `net = unwrap(model)`."""
    inner = _unwrapped(code, call.func, module) if isinstance(call.func, ast.Name) and call.args else None
    return inner if inner is not None and is_wrapped(code, inner.value, module) else None


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
        if inner is not None and is_wrapped(code, inner.value, module):
            return inner
    return None


def _unwrapped(code: Code, node: ast.AST | None, module: Module) -> ast.Attribute | None:
    """Return the model inside a wrapper that an expression is: `model.module`, or a variable set to that."""
    made = last_value(node, module) if isinstance(node, ast.Name) else node
    if isinstance(made, ast.Attribute):
        return made if _is_inner(made) else None
    found = code.program.definition(code.program.name_of(made.func, module)) if isinstance(made, ast.Call) else None
    if found is None or not isinstance(made, ast.Call) or len(made.args) != 1:
        return None
    returns = [one.value for one in ast.walk(found[1]) if isinstance(one, ast.Return)]
    is_unwrapping = any(_is_inner(part) for value in returns if value is not None for part in ast.walk(value))
    return ast.Attribute(made.args[0], "module", ast.Load()) if is_unwrapping else None


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


def _may_train(node: ast.AST) -> TypeGuard[Function]:
    """Return whether a node is a function which neither its name nor a decorator says that it does not train."""
    return isinstance(node, FUNCTIONS) and not _NO_TRAINING.search(node.name) and not node.decorator_list


def _is_called_too(wrapper: ast.expr, call: ast.Call, module: Module) -> bool:
    """Return whether the wrapper itself is called in the same function: then the inner model may be meant."""
    spelled_so = ast.unparse(wrapper)
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func) == spelled_so for node in ast.walk(module.scope_of(call))
    )
