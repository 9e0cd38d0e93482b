"""Models that FSDP shards: an optimizer that has the parameters of before."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import FSDP, Code, is_sharding
from jobsubmit.check.collectives.branches import leaves_at_last
from jobsubmit.check.order import by_scope, leading_to, position
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, class_around, own_method, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_DEEPEST = 3
_CLIP = "torch.nn.utils.clip_grad_norm_"


def check_sharding(code: Code) -> Iterator[Finding]:
    """Yield a warning for an optimizer that has other parameters than the model, and for clipping by part."""
    if code.world_size != 1 and not code.has_framework:
        yield from list(_optimizer_too_early(code)) or list(_optimizer_made_first(code))
    if code.world_size != 1:
        yield from _clipped_by_part(code)


def _optimizer_too_early(code: Code) -> Iterator[Finding]:
    """Yield a warning for an optimizer that gets the parameters of a model before these are sharded."""
    if not any(is_sharding(name) for _, _, name in code.reached.calls):
        return
    scopes = {module.scope_of(call): module for module, call, _ in code.reached.calls}
    for scope, module in scopes.items():
        calls = [node for node in walk(scope) if isinstance(node, ast.Call) and module.scope_of(node) is scope]
        shards = [(call, model) for call in calls if (model := _sharded(code, call, module))]
        for call, model in shards:
            optimizers = [node for node in calls if _is_optimizer_of(code, node, model, module)]
            if optimizers and all(node.lineno < call.lineno for node in optimizers):
                yield Finding(
                    "warning",
                    "optimizer-too-early",
                    module.where(optimizers[-1]),
                    f"the optimizer gets the parameters of {model} before {unparsed(call.func)} replaces them: it "
                    "would update others",
                    f"make the optimizer after {unparsed(call.func)}",
                )
                return


def _optimizer_made_first(code: Code) -> Iterator[Finding]:
    """Yield a warning for the only optimizer of a program, if functions make it before others shard the model."""
    optimizers = [call for _, call, name in code.reached.calls if _is_optimizer(name)]
    shards = [call for _, call, name in code.reached.calls if is_sharding(name)]
    if len(optimizers) != 1 or not shards:
        return
    for calls in by_scope((module, call) for module, call, _ in code.reached.calls):
        made, sharded = leading_to(code, calls, optimizers), leading_to(code, calls, shards)
        if made and sharded and position(made[0]) < position(sharded[0]) and made[0].call is not sharded[0].call:
            yield Finding(
                "warning",
                "optimizer-too-early",
                made[0].home.where(made[0].inner),
                f"the optimizer gets the parameters of the model before {unparsed(sharded[0].inner.func)} "
                f"({sharded[0].home.where(sharded[0].inner)}) replaces them: it would update others",
                "shard the model first, then make the optimizer",
            )
            return


def _is_optimizer(name: str) -> bool:
    return name.startswith("torch.optim.") and "." not in name.removeprefix("torch.optim.")


def _clipped_by_part(code: Code) -> Iterator[Finding]:
    """Yield a warning where gradients of shards are clipped by the norm of one process's part."""
    names = [f"{name}." for _, _, name in code.reached.calls]
    if not any(f".{FSDP}." in name or name.endswith(".FSDPStrategy.") for name in names):
        return
    for module, call in code.calls(_CLIP):
        if _is_for_others(code, call, module) or _is_overridden(code, call, module):
            continue
        yield Finding(
            "warning",
            "clipped-by-part",
            module.where(call),
            f"each process of {FSDP} has its own part of the gradients, so each clips by another norm",
            "call clip_grad_norm_() of the wrapped model, or clip_gradients() of Fabric",
        )
        return


def _is_for_others(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether another branch of a condition clips by the method of the model: this one is without shards."""
    inner: ast.AST = call
    for above in module.above(call):
        block = getattr(above, "body", None)
        before = block[: block.index(inner)] if isinstance(block, list) and inner in block else []
        branches = [(one.test, one.body) for one in before if isinstance(one, ast.If) and leaves_at_last(one.body)]
        if isinstance(above, ast.If):
            branches.append((above.test, above.body if inner in above.orelse else above.orelse))
        for test, other in branches:
            calls = (node for one in other for node in walk(one) if isinstance(node, ast.Call))
            is_open = code.values.truth(test, module) is None
            if is_open and any(_is_own_clip(code, node, module) for node in calls):
                return True
        inner = above
    return False


def _is_overridden(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a method is another one in the classes that shard their models and are based on this one."""
    method, owner = module.function_of(call), class_around(call, module)
    sharding = [
        around
        for home, one, name in code.reached.calls
        if is_sharding(name) and (around := class_around(one, home)) is not None
    ]
    children = [one for one in sharding if owner is not None and owner.name in map(spelled, one.bases)]
    return bool(children) and method is not None and all(own_method(one, method.name) for one in children)


def _is_own_clip(code: Code, call: ast.Call, module: Module) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "clip_grad_norm_"
    return is_method and code.program.name_of(call.func, module) != _CLIP


def _sharded(code: Code, call: ast.Call, module: Module, depth: int = 0) -> str:
    """Return the variable of the model that a call shards, itself or by a function of the program; else nothing."""
    name = code.program.name_of(call.func, module)
    model = spelled(argument(call, "module", 0) or call)
    if not model or "(" in model:
        return ""
    if is_sharding(name):
        return model
    given = _given_on(code, call, model, module) if depth < _DEEPEST else None
    inside = given is not None and any(
        isinstance(one, ast.Call) and _sharded(code, one, given[0], depth + 1) == given[2] for one in walk(given[1])
    )
    return model if inside else ""


def _given_on(code: Code, call: ast.Call, variable: str, module: Module) -> tuple[Module, Function, str] | None:
    """Return the function that a call gives a variable to, with its module and the name of its parameter."""
    found = code.program.called(call, module)
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    home, function = found[0], found[1]
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    own = [name for name in names if spelled(given_for(call, function, name) or call) == variable]
    return (home, function, own[0]) if own else None


def _is_optimizer_of(code: Code, node: ast.Call, model: str, module: Module) -> bool:
    """Return whether a call makes an optimizer of a model's parameters, itself or by a function of the program."""
    if code.program.name_of(node.func, module).startswith("torch.optim."):
        given = argument(node, "params", 0)
        return given is not None and any(spelled(inner) == model for inner in walk(given))
    inner = _given_on(code, node, model, module)
    if inner is None:
        return _makes_both(code, node, model, module)
    home, function, parameter = inner
    calls = [one for one in walk(function) if isinstance(one, ast.Call)]
    makes_one = any(code.program.name_of(one.func, home).startswith("torch.optim.") for one in calls)
    gives = any(unparsed(given) == f"{parameter}.parameters()" for one in calls for given in one.args)
    is_named = "optim" in function.name.lower() and gives
    return (makes_one or is_named) and not any(_sharded(code, one, home) for one in calls)


def _makes_both(code: Code, call: ast.Call, model: str, module: Module) -> bool:
    """Return whether a function of the program makes a model and its optimizer: `model, optimizer = build(args)`."""
    found = code.program.definition(code.program.name_of(call.func, module))
    statement = module.parents.get(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    is_set = any(spelled(one) == model for target in targets for one in getattr(target, "elts", ()))
    if found is None or not is_set or not isinstance(found[1], FUNCTIONS):
        return False
    calls = [one for one in walk(found[1]) if isinstance(one, ast.Call)]
    makes_one = any(code.program.name_of(one.func, found[0]).startswith("torch.optim.") for one in calls)
    return makes_one and not any(_sharded(code, one, found[0]) for one in calls)
