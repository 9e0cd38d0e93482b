"""The order of the data in each epoch: samplers that are given no epoch, or always the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.loading.sampler import is_for_training
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_SHUFFLE = 3  # the position of the argument of DistributedSampler
# They give samplers their epochs themselves.
_SET_EPOCHS = ("accelerate", "composer", "fastai", "ignite", "lightning", "mmcv", "mmengine", "pytorch_lightning")


def check_epochs(code: Code) -> Iterator[Finding]:
    """Yield a warning if the data has the same order in every epoch."""
    if code.world_size != 1:
        yield from _constant_epoch(code)
        yield from _no_epoch(code)


def _no_epoch(code: Code) -> Iterator[Finding]:
    if _sets_epochs(code) or code.program.imports(*_SET_EPOCHS) or not _has_epochs(code):
        return
    for module, call, name in code.reached.calls:
        if name.startswith("torch.") and name.endswith(".DistributedSampler") and _is_shuffling(code, call, module):
            yield Finding(
                "warning",
                "set-epoch",
                module.where(call),
                "set_epoch() is never called: the sampler uses the same order in every epoch",
                "call sampler.set_epoch(epoch) at the beginning of each epoch",
            )
            return


def _sets_epochs(code: Code) -> bool:
    """Return whether anything may give a sampler its epoch: a function that is named nowhere does not."""
    for module, node in code.program.of(ast.Attribute):
        if node.attr == "epoch" and isinstance(node.ctx, ast.Store):
            if "sampler" in ast.unparse(node.value):
                return True
        if node.attr == "set_epoch" and not _passes_on(node, module):
            is_called = code.may_be_used(node, module) and not _is_skipped(code, node, module)
            if is_called or code.looks_up_names:
                return True
    return code.looks_elsewhere


def _is_skipped(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether what is executed never comes to something in it."""
    function = module.function_of(node)
    is_entered = function is None or bool(code.reached.of(function.body[0], module))
    return is_entered and not code.reached.of(node, module)


def _passes_on(node: ast.AST, module: Module) -> bool:
    """Return whether a method of the same name hands over the epoch that it gets: another has to call that one."""
    function = module.function_of(node)
    return function is not None and function.name == "set_epoch"


def _has_epochs(code: Code) -> bool:
    for module, node in code.program.of(ast.For, ast.While):
        if isinstance(node, ast.For) and "epoch" in ast.unparse(node.target) + ast.unparse(node.iter):
            if code.reached.of(node, module) and not _is_single_pass(code, module, node):
                return True
        if isinstance(node, ast.While) and (isinstance(node.test, ast.Compare) or getattr(node.test, "value", False)):
            loops = [inner for inner in ast.walk(node) if isinstance(inner, (ast.For, ast.YieldFrom))]
            sources = [inner.iter if isinstance(inner, ast.For) else inner.value for inner in loops]
            if any("loader" in ast.unparse(source) for source in sources):
                return True
    return False


def _is_single_pass(code: Code, module: Module, loop: ast.For) -> bool:
    if not isinstance(loop.iter, ast.Call) or ast.unparse(loop.iter.func) != "range":
        return False
    value = code.values.of(loop.iter, module)
    return isinstance(value, list) and len(value) <= 1


def _is_shuffling(code: Code, call: ast.Call, module: Module) -> bool:
    node = argument(call, "shuffle", _SHUFFLE)
    shuffle = code.values.of(node, module)
    if hides_arguments(call) or shuffle is False or "epoch" in ast.unparse(argument(call, "seed") or ast.Pass()):
        return False
    return is_for_training(call, module)


def _constant_epoch(code: Code) -> Iterator[Finding]:
    calls = [
        (module, call)
        for module, call, _ in code.reached.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "set_epoch" and len(call.args) == 1
    ]
    always = [(module, call) for module, call in calls if _is_number_of_sampler(call, module)]
    if always or (calls and all(_is_same_each_time(call.args[0], module) for module, call in calls)):
        module, call = (always or calls)[0]
        yield Finding(
            "warning",
            "set-epoch",
            module.where(call),
            f"set_epoch({ast.unparse(call.args[0])}) in every epoch: the sampler uses the same order each time",
            "pass the number of the epoch",
        )


def _is_same_each_time(given: ast.expr, module: Module) -> bool:
    """Return whether an argument is fixed, or a variable that no loop around it changes."""
    if isinstance(given, ast.Constant):
        return True
    function = module.function_of(given)
    if not isinstance(given, ast.Name) or (function is not None and given.id in parameters(function)):
        return False
    stores = module.stores.get((module.scope_of(given), given.id), ())
    loops = [above for above in module.above(given) if isinstance(above, (ast.For, ast.While))]
    return bool(stores and loops) and not any(loop in set(module.above(store)) for store in stores for loop in loops)


def _is_number_of_sampler(call: ast.Call, module: Module) -> bool:
    """Return whether a sampler gets the number that chooses it: `samplers[k].set_epoch(k)` is the same each time."""
    owner, given = call.func.value, call.args[0]  # type: ignore[attr-defined] # it is a method
    chosen = last_value(owner, module) if isinstance(owner, ast.Name) else owner
    return isinstance(given, ast.Name) and isinstance(chosen, ast.Subscript) and spelled(chosen.slice) == given.id
