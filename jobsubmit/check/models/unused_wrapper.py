"""Wrappers that nothing calls, while training uses the model beside them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from jobsubmit.check.code import Code, is_ddp, trains
from jobsubmit.check.models.bypassing import is_inner, may_train, without_gradients
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import (
    FUNCTIONS,
    Module,
    class_around,
    is_of_self,
    returned_values,
    spelled,
    unparsed,
)
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters, position
from jobsubmit.common.finding import Finding


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
                f"this calls {unparsed(inner)}, and nothing calls the wrapper around it ({module.where(call)}): the "
                "gradients are not averaged, and each process trains a model of its own",
                "let it call the wrapper",
            )
            return


def kept_aside(code: Code) -> Iterator[Finding]:
    """Yield a warning for a wrapper that nothing calls or gets in a function that trains with the model beside it.

    `self.ddp_model = DDP(self.model)`, and the loss is computed with `self.model`.
    """
    wrappers = _kept_wrappers(code)
    for module, call, name in code.reached.calls:
        statement = module.parents.get(call)
        kept = statement.targets[0] if isinstance(statement, ast.Assign) else None
        model = _model_wrapped(code, call, name)
        if not isinstance(kept, (ast.Name, ast.Attribute)) or not spelled(kept):
            continue
        if not isinstance(model, (ast.Name, ast.Attribute)) or spelled(kept) == spelled(model):
            continue
        uses = [(home, node) for home, node in _uses_of(code, kept, module) if code.reached.of(node, home)]
        if not uses and isinstance(kept, ast.Name):
            continue
        is_called = any(not _is_of_parts(home, node) and not _never_calls(code, node, home) for home, node in uses)
        same = [model, *_kept_as(model, module)]
        for home, node in (use for one in same for use in _uses_of(code, one, module)):
            if node is model or not _is_trained(code, node, home):
                continue
            if not is_called or _is_called_alone(node, home, wrappers):
                yield Finding(
                    "warning",
                    "bypassed",
                    home.where(node),
                    f"this uses {spelled(node)}, and not the wrapper around it, {spelled(kept)} "
                    f"({module.where(call)}): the gradients are not averaged, and each process trains a model of its "
                    "own",
                    f"use {spelled(kept)}",
                )
                return


def _is_called_alone(node: ast.expr, module: Module, wrappers: Collection[str]) -> bool:
    """Return whether a model is called, with gradients, in a function that uses none of the wrappers."""
    call, scope = module.parents.get(node), module.scope_of(node)
    is_called = isinstance(call, ast.Call) and call.func is node and bool(call.args)
    used = (spelled(one).rpartition(".")[2] for one in walk(scope) if isinstance(one, (ast.Name, ast.Attribute)))
    return is_called and not without_gradients(node, module) and not any(name in wrappers for name in used)


def _kept_wrappers(code: Code) -> set[str]:
    """Return the names of the variables and fields that wrappers are kept in where they are made."""
    made = (home.parents.get(call) for home, call, name in code.reached.calls if is_ddp(name))
    targets = (target for one in made if isinstance(one, ast.Assign) for target in one.targets)
    return {spelled(target).rpartition(".")[2] for target in targets}


def _model_wrapped(code: Code, call: ast.Call, name: str) -> ast.expr | None:
    """Return the model that a call wraps, itself or by a function that returns the wrapper."""
    if is_ddp(name):
        return argument(call, "module", 0)
    found = code.program.definition(name)
    if found is None or not isinstance(found[1], FUNCTIONS):
        return None
    for returned in returned_values(found[1]):
        inner = argument(returned, "module", 0) if isinstance(returned, ast.Call) else None
        is_wrapper = isinstance(returned, ast.Call) and is_ddp(code.program.name_of(returned.func, found[0]))
        if is_wrapper and isinstance(inner, ast.Name) and inner.id in parameters(found[1]):
            return given_for(call, found[1], inner.id)
    return None


def _kept_as(model: ast.Name | ast.Attribute, module: Module) -> list[ast.Name | ast.Attribute]:
    """Return the fields that a function sets to a model that it has in a variable: `self.model = model`."""
    fields = (one for one in walk(module.scope_of(model)) if isinstance(one, ast.Attribute) and is_of_self(one))
    stores = (one for one in fields if isinstance(one.ctx, ast.Store))
    made = ((one, assigned_to(one, module)) for one in stores)
    return [one for one, value in made if isinstance(value, ast.Name) and value.id == spelled(model)]


def held_before(code: Code) -> Iterator[Finding]:
    """Yield a warning for an object that keeps a model from before it was wrapped, and that training calls instead.

    `criterion = Loss(model); model = DDP(model)`, and the loss is `criterion(batch)`.
    """
    for module, call, name in code.reached.calls:
        statement = module.parents.get(call)
        kept = statement.targets[0] if isinstance(statement, ast.Assign) else None
        model = argument(call, "module", 0)
        if not is_ddp(name) or not isinstance(kept, ast.Name) or not isinstance(model, ast.Name):
            continue
        after = [node for _, node in _uses_of(code, kept, module) if position(node) > position(call)]
        uses = [node for node in after if node is not model]
        is_called = any(not _is_of_parts(module, one) and not _is_inner_used(module, one) for one in uses)
        if kept.id != model.id or is_called:
            continue
        for home, trained in _calls_of_holders(code, model, call, module):
            yield Finding(
                "warning",
                "bypassed",
                home.where(trained),
                f"{unparsed(trained.func)} got {model.id} before it was wrapped ({module.where(call)}), and nothing "
                "calls the wrapper: the gradients are not averaged, and each process trains a model of its own",
                "wrap the model first, or call the wrapper",
            )
            return


def _is_inner_used(module: Module, node: ast.AST) -> bool:
    """Return whether a use of a wrapper is the model inside it."""
    return is_inner(module.parents.get(node))


def _calls_of_holders(code: Code, model: ast.Name, wrap: ast.Call, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls, where gradients are computed, of objects of the program that got a model before `wrap`."""
    scope = module.scope_of(wrap)
    for made in (node for node in walk(scope) if isinstance(node, ast.Call) and position(node) < position(wrap)):
        statement = module.parents.get(made)
        holder = statement.targets[0] if isinstance(statement, ast.Assign) else None
        found = code.program.definition(code.program.name_of(made.func, module))
        is_given = any(isinstance(one, ast.Name) and one.id == model.id for one in made.args)
        if not isinstance(holder, ast.Name) or not is_given or found is None or not isinstance(found[1], ast.ClassDef):
            continue
        for use in (node for node in walk(scope) if isinstance(node, ast.Call)):
            if spelled(use.func) == holder.id and trains(scope) and code.reached.of(use, module):
                yield module, use


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
    for node in walk(module.scope_of(target)):
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
    uses = [one for one in walk(found[1]) if isinstance(one, ast.Name) and one.id in names]
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
    is_training = trains(scope) and (isinstance(scope, ast.Module) or may_train(scope))
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
