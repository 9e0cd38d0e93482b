"""The order of the data in each epoch: samplers that are given no epoch, or always the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import Code
from jobsubmit.check.loading.sampler import is_for_training
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, spelled
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_LONGEST_WAY = 3  # from a function to one that calls it
_SHUFFLE = 3  # the position of the argument of DistributedSampler
# They give samplers their epochs themselves.
_SET_EPOCHS = ("accelerate", "composer", "fastai", "ignite", "lightning", "mmcv", "mmengine", "pytorch_lightning")


def check_epochs(code: Code) -> Iterator[Finding]:
    """Yield a warning if the data has the same order in every epoch."""
    if code.world_size != 1:
        yield from _constant_epoch(code)
        yield from _no_epoch(code)


def _no_epoch(code: Code) -> Iterator[Finding]:
    if _sets_epochs(code) or code.uses(*_SET_EPOCHS) or not _has_epochs(code):
        return
    for module, call, name in code.reached.calls:
        is_sampler = name.startswith("torch.") and name.endswith(".DistributedSampler")
        if (is_sampler and _is_shuffling(code, call, module)) or _has_sampler_of_timm(code, call, name, module):
            yield Finding(
                "warning",
                "set-epoch",
                module.where(call),
                "set_epoch() is never called: the sampler uses the same order in every epoch",
                "call sampler.set_epoch(epoch) at the beginning of each epoch",
            )
            return


def _has_sampler_of_timm(code: Code, call: ast.Call, name: str, module: Module) -> bool:
    """Return whether a call makes one of timm's loaders for the training, with a sampler for several processes."""
    if not name.startswith("timm.") or not name.endswith(".create_loader"):
        return False
    trains, is_divided = argument(call, "is_training"), argument(call, "distributed")
    is_on = all(one is not None and code.values.truth(one, module) for one in (trains, is_divided))
    return is_on and code.is_parallel


def _sets_epochs(code: Code) -> bool:
    """Return whether anything may give a sampler its epoch: a function that is named nowhere does not."""
    for module, node in code.program.of(ast.Attribute):
        if node.attr == "epoch" and isinstance(node.ctx, ast.Store):
            if "sampler" in ast.unparse(node.value):
                return True
        if node.attr == "set_epoch" and not _passes_on(node, module):
            is_called = code.may_be_used(node, module) and not code.passes_by(node, module)
            if is_called or code.looks_up_names:
                return True
    return code.looks_elsewhere


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
            loops = [inner for inner in walk(node) if isinstance(inner, (ast.For, ast.YieldFrom))]
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
        for module, call, _ in code.program.calls
        if isinstance(call.func, ast.Attribute)
        and (call.func.attr == "set_epoch" and len(call.args) == 1)
        and (code.reached.of(call, module) or _is_of_iterator(call, module))
    ]
    always = [(module, call) for module, call in calls if _is_number_of_sampler(call, module)]
    before = [(module, call) for module, call in calls if _is_before_epochs(code, call, module)]
    if before and len(before) == len(calls):
        yield Finding(
            "warning",
            "set-epoch",
            before[0][0].where(before[0][1]),
            "set_epoch() is called only once, before the epochs: the sampler uses the same order in each of them",
            "call it at the beginning of each epoch",
        )
        return
    if always or (calls and all(_is_same_each_time(code, call.args[0], module) for module, call in calls)):
        module, call = (always or calls)[0]
        yield Finding(
            "warning",
            "set-epoch",
            module.where(call),
            f"set_epoch({ast.unparse(call.args[0])}) in every epoch: the sampler uses the same order each time",
            "pass the number of the epoch",
        )


def _is_of_iterator(call: ast.Call, module: Module) -> bool:
    """Return whether a call is in what a loop over an object executes, although nothing else calls it."""
    return getattr(module.function_of(call), "name", "") in ("__iter__", "__next__")


def _is_same_each_time(code: Code, given: ast.expr, module: Module) -> bool:
    """Return whether an argument is fixed, or a variable or an option that no loop around it changes."""
    if isinstance(given, ast.Constant):
        return True
    loops = [above for above in module.above(given) if isinstance(above, (ast.For, ast.While))]
    if isinstance(given, ast.Attribute) and code.values.namespaces.hold(given.value, module):
        places = code.program.attribute_stores.get(given.attr, ())
        is_set_here = all(home.scope_of(store) is module.scope_of(given) for home, store in places)
        return bool(loops) and is_set_here and not _is_in_any(loops, [store for _, store in places], module)
    function = module.function_of(given)
    if not isinstance(given, ast.Name) or (function is not None and given.id in parameters(function)):
        return False
    stores = module.stores.get((module.scope_of(given), given.id), ())
    return bool(stores and loops) and not _is_in_any(loops, stores, module)


def _is_before_epochs(code: Code, call: ast.Call, module: Module, depth: int = 0) -> bool:
    """Return whether a call is in no loop, and one over the epochs comes below it, or below its function's calls."""
    around = set(module.above(call))
    loops = [node for node in walk(module.scope_of(call)) if isinstance(node, ast.For)]
    if not around.isdisjoint(loops) or any(isinstance(above, ast.While) for above in around):
        return False
    if any("epoch" in ast.unparse(loop.target) and loop.lineno > call.lineno for loop in loops):
        return True
    function = module.function_of(call)
    callers = code.program.calls_to(function, module) if function is not None and depth < _LONGEST_WAY else ()
    return bool(callers) and all(_is_before_epochs(code, one, home, depth + 1) for home, one in callers)


def _is_in_any(loops: Sequence[ast.AST], nodes: Sequence[ast.AST], module: Module) -> bool:
    return any(loop in set(module.above(node)) for node in nodes for loop in loops)


def _is_number_of_sampler(call: ast.Call, module: Module) -> bool:
    """Return whether a sampler gets the number that chooses it: `samplers[k].set_epoch(k)` is the same each time."""
    owner, given = call.func.value, call.args[0]  # type: ignore[attr-defined] # it is a method
    chosen = last_value(owner, module) if isinstance(owner, ast.Name) else owner
    return isinstance(given, ast.Name) and isinstance(chosen, ast.Subscript) and spelled(chosen.slice) == given.id
