"""Models wrapped for several processes: on which device, in which order, and whether it is the wrapper that trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from jobsubmit.check.code import Code, is_ddp, trains
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.modules import Function, Module
from jobsubmit.common.finding import Finding

_FSDP = "FullyShardedDataParallel"
_SHARDS = ("fully_shard", _FSDP)
_ON_CPU = ("torch.nn.", "torchvision.models.")
_TO_DEVICE = ("to", "cuda", "to_empty")
_FREEZES = re.compile(r"requires_grad = False|requires_grad_\(False\)")
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
    for check in (_on_cpu, _bypassed, _two_wrappers, _norms_too_late, _thawed_later):
        yield from next(([finding] for one in found for finding in check(code, one)), [])
    yield from _inner_called(code)
    yield from _optimizer_too_early(code)
    yield from _never_synchronized(code)
    yield from _inverted(code)


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
    names_gpus = isinstance(argument(one.call, "device_ids", 1), ast.List)
    is_placed = code.places_by_default or "device_map" in code.names
    if code.facts.gpus == 0 or is_placed or not (names_gpus or code.is_on_nccl_only):
        return
    made = last_value(one.model, one.module)
    if made is not None and _is_on_cpu(code, made, one.module) and not _is_moved(one, made):
        yield Finding(
            "error" if code.reached.is_sure(one.call, one.module) else "warning",
            "model-on-cpu",
            one.module.where(one.call),
            f"{one.model.id} is still on the CPU when DistributedDataParallel gets it, and the processes communicate "
            "on GPUs",
            f"move it first: {one.model.id}.to(local_rank)",
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
    loads = [node for node in ast.walk(one.scope) if _is_load(node, one.wrapper)]
    if any(_may_train_by(code, node, one.module) for node in loads):
        return
    for node in ast.walk(one.scope):
        if isinstance(node, ast.Call) and node.lineno > one.call.lineno and _is_load(node.func, one.model.id):
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


def _is_load(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _two_wrappers(code: Code, one: _Wrapped) -> Iterator[Finding]:
    made = last_value(one.model, one.module)
    if isinstance(made, ast.Call) and code.program.name_of(made.func, one.module) == "torch.nn.DataParallel":
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
        if one.wrapper and _is_load(call.args[0], one.wrapper) and call.lineno > one.call.lineno:
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
    changes = [(node, _sets_gradient(code, node, one)) for node in nodes]
    frozen = [node for node, value in changes if value not in (None, True) and node.lineno < one.call.lineno]
    thawed = [node for node, value in changes if value is True and node.lineno > one.call.lineno]
    if thawed and (frozen or _freezes_by_call(code, one)):
        yield Finding(
            "warning",
            "thawed-later",
            one.module.where(thawed[0]),
            "DistributedDataParallel does not synchronize parameters that were frozen when it got the model",
            "unfreeze them before, or wrap the model again",
        )


def _sets_gradient(code: Code, node: ast.Assign | ast.Call, one: _Wrapped) -> object:
    """Return what a statement sets requires_grad to; None for any other node."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        return code.values.of(node.value, one.module) if node.targets[0].attr == "requires_grad" else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        return code.values.of(node.args[0], one.module) if node.args else True
    return None


def _freezes_by_call(code: Code, one: _Wrapped) -> bool:
    """Return whether a function that is called before the model is wrapped freezes parameters."""
    for call in (node for node in ast.walk(one.scope) if isinstance(node, ast.Call)):
        found = code.program.definition(code.program.name_of(call.func, one.module))
        if found is None or call.lineno >= one.call.lineno:
            continue
        text = ast.unparse(found[1])
        is_told = any(isinstance(arg, ast.Constant) and arg.value is False for arg in call.args)
        if _FREEZES.search(text) or (is_told and "requires_grad" in text):
            return True
    return False


def _inner_called(code: Code) -> Iterator[Finding]:
    """Yield a warning where training calls `model.module(x)`, past the wrapper."""
    if not code.wraps_models:
        return
    for module, call, _ in code.reached.calls:
        is_inner = isinstance(call.func, ast.Attribute) and call.func.attr == "module" and call.args
        if not is_inner or not trains(module.scope_of(call)):
            continue
        above = list(module.above(call))
        texts = [ast.unparse(item) for node in above if isinstance(node, ast.With) for item in node.items]
        texts += [ast.unparse(node.test) for node in above if isinstance(node, (ast.If, ast.IfExp))]
        if not any(word in text for text in texts for word in ("no_grad", "inference_mode", "module", "Parallel")):
            yield Finding(
                "warning",
                "bypassed",
                module.where(call),
                f"{ast.unparse(call.func)} is the model inside the wrapper: the gradients are not averaged, and each "
                "process trains a model of its own",
                f"call {ast.unparse(call.func.value)}",  # type: ignore[attr-defined]
            )
            return


def _optimizer_too_early(code: Code) -> Iterator[Finding]:
    """Yield a warning for an optimizer that gets the parameters of a model before these are sharded."""
    for module, call, name in code.reached.calls:
        last = name.rpartition(".")[2]
        model = argument(call, "module", 0)
        if last not in _SHARDS or not name.startswith("torch.") or not isinstance(model, ast.Name):
            continue
        scope = module.scope_of(call)
        calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
        optimizers = [node for node in calls if _is_optimizer_of(code, node, model.id, module)]
        if optimizers and all(node.lineno < call.lineno for node in optimizers):
            yield Finding(
                "warning",
                "optimizer-too-early",
                module.where(optimizers[-1]),
                f"the optimizer gets the parameters of {model.id} before {last} replaces them: it would update others",
                f"make the optimizer after {last}",
            )
            return


def _is_optimizer_of(code: Code, node: ast.Call, model: str, module: Module) -> bool:
    if not code.program.name_of(node.func, module).startswith("torch.optim."):
        return False
    given = argument(node, "params", 0)
    return given is not None and any(_is_load(inner, model) for inner in ast.walk(given))


def _never_synchronized(code: Code) -> Iterator[Finding]:
    """Yield a warning where every backward is under no_sync(): then no gradient is ever averaged."""
    calls = [
        (module, call)
        for module, call, _ in code.reached.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
    ]
    if calls and all(any(map(_is_no_sync, module.above(call))) for module, call in calls):
        module, call = calls[0]
        yield Finding(
            "warning",
            "never-synchronized",
            module.where(call),
            "every backward() is under no_sync(): the gradients are never averaged",
            "call the last backward() before optimizer.step() outside of no_sync()",
        )


def _inverted(code: Code) -> Iterator[Finding]:
    """Yield a warning where the step before the optimizer's is the one without synchronization."""
    for module, node in code.program.of(ast.IfExp, ast.If):
        if isinstance(node, ast.IfExp):
            skips = _calls_no_sync(node.body)
        else:
            skips = any(_is_no_sync(statement) for statement in node.body)
        if skips and code.reached.of(node, module) and _is_last_step(code, node.test, module):
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(node),
                f"no_sync() holds where {ast.unparse(node.test)}, in the step that ends with optimizer.step(): the "
                "gradients of this step are not averaged",
                "turn the condition around: no_sync() belongs to all steps but the last",
            )
            return


def _is_last_step(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition holds in the last of some steps: `(i + 1) % n == 0`, `i == n - 1`."""
    if isinstance(test, ast.Name):
        made = last_value(test, module)
        return made is not None and _is_last_step(code, made, module)
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    left, right = test.left, test.comparators[0]
    is_period = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.left, ast.BinOp)
    is_end = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and ast.unparse(right.right) == "1"
    return (is_period and ast.unparse(right) == "0") or is_end


def _calls_no_sync(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "no_sync"


def _is_no_sync(node: ast.AST) -> bool:
    items = node.items if isinstance(node, ast.With) else []
    return any(_calls_no_sync(item.context_expr) for item in items)
