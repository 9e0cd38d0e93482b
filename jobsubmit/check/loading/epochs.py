"""The order of the data in each epoch: samplers that are given no epoch, or always the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from jobsubmit.check.code import LOADERS, Code
from jobsubmit.check.loading.divided import has_epochs
from jobsubmit.check.loading.loaders import is_for_training
from jobsubmit.check.origins import last_value, origins, words_of
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, class_around, own_method, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_LONGEST_WAY = 3  # from a function to one that calls it
_SHUFFLE = 3  # the position of the argument of DistributedSampler
# They give samplers their epochs themselves.
_SET_EPOCHS = ("accelerate", "composer", "fastai", "ignite", "lightning", "mmcv", "mmengine", "pytorch_lightning")
_EPOCH = re.compile(r"(?:cur(?:rent)?_|i_?)?epoch(?:_(?:idx|num|number|i))?")
_SETS_ANY = ("setattr", "__setattr__", "__dict__")
_SETS_START = re.compile(r"^__init__$|^_*(?:re)?(?:load|resume|restore|init|parse)(?:_|$)|_args$")
_COUNTS = re.compile(r"step|iter|round|seed|pass")


def check_epochs(code: Code) -> Iterator[Finding]:
    """Yield a warning if the data has the same order in every epoch."""
    if code.world_size != 1:
        yield from _constant_epoch(code)
        yield from _given_to_others(code)
        yield from _no_epoch(code)


def _no_epoch(code: Code) -> Iterator[Finding]:
    if _sets_epochs(code) or code.uses(*_SET_EPOCHS) or not has_epochs(code):
        return
    for module, call, name in code.reached.calls:
        is_sampler = name.startswith("torch.") and name.endswith(".DistributedSampler")
        is_sampler |= code.is_distributed and _draws_by_epoch(code, name)
        if (is_sampler and _is_shuffling(code, call, module)) or _has_sampler_of_timm(code, call, name, module):
            yield Finding(
                "warning",
                "set-epoch",
                module.where(call),
                "set_epoch() is never called: the sampler uses the same order in every epoch",
                "call sampler.set_epoch(epoch) at the beginning of each epoch",
            )
            return


def _draws_by_epoch(code: Code, name: str) -> bool:
    """Return whether a class is a sampler of the program that orders the data by the epoch which set_epoch() sets."""
    found = code.program.definition(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return False
    goes, setter = own_method(found[1], "__iter__"), own_method(found[1], "set_epoch")
    bases = [code.program.name_of(base, found[0]) for base in found[1].bases]
    is_based = any(base.startswith("torch.") and base.endswith(".DistributedSampler") for base in bases)
    text = "" if goes is None or (setter is None and not is_based) else unparsed(goes)
    counts = re.search(r"self\.epoch (?:\+=|=) ", text) is not None  # it goes on by itself
    return "self.epoch" in text and not counts


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
            if "sampler" in unparsed(node.value):
                return True
        if node.attr == "set_epoch" and not _passes_on(node, module):
            is_called = code.may_be_used(node, module) and not code.passes_by(node, module)
            if code.looks_up_names or (is_called and not _is_of_other_program(code, node, module)):
                return True
    return code.looks_elsewhere


def _is_of_other_program(code: Code, node: ast.AST, module: Module) -> bool:
    """Return whether a node is in a function at the top of a module that nothing calls: that of another script."""
    function = module.function_of(node)
    is_at_top = function is not None and module.definitions.get(function.name) is function
    return is_at_top and function is not None and not code.reached.entered(function, module)


def _passes_on(node: ast.AST, module: Module) -> bool:
    """Return whether a method of the same name hands over the epoch that it gets: another has to call that one."""
    function = module.function_of(node)
    return function is not None and function.name == "set_epoch"


def _is_shuffling(code: Code, call: ast.Call, module: Module) -> bool:
    node = argument(call, "shuffle", _SHUFFLE)
    shuffle = code.values.of(node, module)
    if hides_arguments(call) or shuffle is False or "epoch" in unparsed(argument(call, "seed") or ast.Pass()):
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
    always = [
        (module, call)
        for module, call in calls
        if _is_number_of_sampler(call, module) or _is_beside_epoch(call, module)
    ]
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
            f"set_epoch({unparsed(call.args[0])}) in every epoch: the sampler uses the same order each time",
            "pass the number of the epoch",
        )


def _is_beside_epoch(call: ast.Call, module: Module) -> bool:
    """Return whether set_epoch() gets another parameter of a function that is given the epoch: `set_epoch(task)`."""
    given, function = call.args[0], module.function_of(call)
    if not isinstance(given, ast.Name) or function is None or "epoch" in given.id.lower():
        return False
    own = parameters(function)
    is_other = given.id in own and (function, given.id) not in module.own_stores and not _COUNTS.search(given.id)
    return is_other and any(_EPOCH.fullmatch(name) for name in own)


def _given_to_others(code: Code) -> Iterator[Finding]:
    """Yield a warning where only `loader.sampler` gets the epoch, of a loader whose batches another sampler makes.

    Source: DataLoader of torch 2.9: with `batch_sampler`, its `sampler` is a SequentialSampler, which nothing asks.
    """
    calls = [(module, call) for module, call, _ in code.reached.calls if getattr(call.func, "attr", "") == "set_epoch"]
    for module, call in calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        loader = owner.value if isinstance(owner, ast.Attribute) and owner.attr == "sampler" else None
        if loader is None or "batch_sampler" in unparsed(loader) or not _batches_by_other(code, loader, module):
            return
    if calls:
        module, call = calls[0]
        loader_name = unparsed(call.func).removesuffix(".sampler.set_epoch")
        yield Finding(
            "warning",
            "set-epoch",
            module.where(call),
            f"{loader_name} has a batch_sampler, so its .sampler is another one, which it does not use: the sampler of "
            "the batches uses the same order in every epoch",
            f"call it on {loader_name}.batch_sampler.sampler, or on the DistributedSampler itself",
        )


def _batches_by_other(code: Code, loader: ast.expr, module: Module) -> bool:
    """Return whether a loader is surely made with a `batch_sampler` around a DistributedSampler."""
    made = [
        (home, part)
        for home, part in origins(code, loader, module)
        if isinstance(part, ast.Call) and code.program.name_of(part.func, home) in LOADERS
    ]
    made = [(home, call) for home, call in made if code.reached.of(call, home)]
    return bool(made) and all(
        (given := argument(call, "batch_sampler", 4)) is not None
        and code.values.of(given, home) is not None
        and "DistributedSampler" in words_of(code, given, home)
        for home, call in made
    )


def _is_of_iterator(call: ast.Call, module: Module) -> bool:
    """Return whether a call is in what a loop over an object executes, although nothing else calls it."""
    return getattr(module.function_of(call), "name", "") in ("__iter__", "__next__")


def _is_same_each_time(code: Code, given: ast.expr, module: Module) -> bool:
    """Return whether an argument is fixed, or a variable or an option that no loop around it changes."""
    if isinstance(given, ast.Constant):
        return True
    loops = [above for above in module.above(given) if isinstance(above, (ast.For, ast.While))]
    if isinstance(given, ast.Attribute):
        return bool(loops) and _is_kept_in(loops, code.program.attribute_stores.get(given.attr, ()), module)
    function = module.function_of(given)
    if not isinstance(given, ast.Name) or (function is not None and given.id in parameters(function)):
        return False
    stores = module.stores.get((module.scope_of(given), given.id), ())
    return bool(stores and loops) and not _is_in_any(loops, stores, module)


def _is_kept_in(loops: Sequence[ast.AST], stores: Sequence[tuple[Module, ast.expr]], module: Module) -> bool:
    """Return whether a field is set, but neither in some loops nor in a function that their names may call."""
    if any(not _is_before_loop(home.function_of(store), loops, module) for home, store in stores):
        return False
    named = {node.attr for loop in loops for node in walk(loop) if isinstance(node, ast.Attribute)}
    named |= {node.id for loop in loops for node in walk(loop) if isinstance(node, ast.Name)}
    around = class_around(loops[0], module) or module.tree if loops else module.tree
    if any(spelled(node).rpartition(".")[2] in _SETS_ANY for node in walk(around)):
        return False
    functions = {home.function_of(store) for home, store in stores} - {module.function_of(loop) for loop in loops}
    is_set_by_call = any(function is not None and function.name in named for function in functions)
    return bool(stores) and not is_set_by_call and not _is_in_any(loops, [store for _, store in stores], module)


def _is_before_loop(function: ast.AST | None, loops: Sequence[ast.AST], module: Module) -> bool:
    """Return whether a function that sets a field is called before a loop, as far as its name or its calls say so."""
    around = {module.function_of(loop) for loop in loops}
    if function is None or function in around:
        return True
    name = getattr(function, "name", "")
    calls = {spelled(one.func).rpartition(".")[2] for one in walk(function) if isinstance(one, ast.Call)}
    return _SETS_START.search(name) is not None or not calls.isdisjoint(getattr(one, "name", "") for one in around)


def _is_before_epochs(code: Code, call: ast.Call, module: Module, depth: int = 0) -> bool:
    """Return whether a call is in no loop, and one over the epochs comes below it, or below its function's calls."""
    around = set(module.above(call))
    loops = [node for node in walk(module.scope_of(call)) if isinstance(node, ast.For)]
    if not around.isdisjoint(loops) or any(isinstance(above, ast.While) for above in around):
        return False
    if any("epoch" in unparsed(loop.target) and loop.lineno > call.lineno for loop in loops):
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
