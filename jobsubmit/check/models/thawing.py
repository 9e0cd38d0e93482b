"""Parameters that are frozen when a model is wrapped, and trained later: nothing synchronizes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.calls import given_for
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, spelled, unparsed
from jobsubmit.check.program.operations import UNKNOWN
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to, parameters
from jobsubmit.check.wrapper import Wrapped
from jobsubmit.common.finding import Finding

_COUNTER = re.compile(r"(?:current_|global_)?(?:epoch|step|iteration|it)")
_INSIDE = re.compile(r"\.module\b")
_FREEZES = re.compile(r"requires_grad = False|requires_grad_\(False\)")


def thawed_later(code: Code, one: Wrapped) -> Iterator[Finding]:
    """Yield a warning where parameters are unfrozen after the wrapper has listed those to synchronize."""
    nodes = [
        node
        for node in walk(one.scope)
        if isinstance(node, (ast.Assign, ast.Call))
        and one.module.scope_of(node) is one.scope
        and not _is_of_other_model(node, one)
    ]
    own = [(node, value) for node in nodes if (value := _sets_gradient(code, node, one.module)) is not None]
    given = [(node, value) for node in nodes for value in _set_by_function(code, node, one)]
    frozen = [node for node, value in own if value is not True and node.lineno < one.call.lineno]
    frozen += [node for node, value in given if value is False and node.lineno < one.call.lineno]
    thawed = [node for node, value in (*own, *given) if value is True and node.lineno > one.call.lineno]
    if frozen:
        thawed += [node for node, value in given if value is UNKNOWN and node.lineno > one.call.lineno]
    frozen += [node for node, value in given if value is UNKNOWN and node.lineno < one.call.lineno]
    if thawed and (frozen or _freezes_by_call(code, one)):
        yield _thawed(one.module, thawed[0])


def _is_of_other_model(node: ast.Assign | ast.Call, one: Wrapped) -> bool:
    """Return whether a loop around a node goes through the parameters of another model: `teacher.parameters()`."""
    loops = (above.iter for above in one.module.above(node) if isinstance(above, ast.For))
    owners = (
        loop.func.value
        for loop in loops
        if isinstance(loop, ast.Call) and isinstance(loop.func, ast.Attribute) and "parameters" in loop.func.attr
    )
    return any(isinstance(owner, ast.Name) and not _is_part(owner, one) for owner in owners)


def _is_part(owner: ast.Name, one: Wrapped) -> bool:
    """Return whether a variable is the model, or set to a part of it or to what a call makes of it."""
    stores = one.module.stores.get((one.module.scope_of(owner), owner.id), ())
    values = [assigned_to(store, one.module) for store in stores if store.id not in (one.model.id, one.wrapper)]
    made_of = [part for value in values if value is not None for part in (value, *getattr(value, "args", ()))]
    return not values or any(_is_model(part, one) for part in made_of)


def thawed_in_loop(code: Code) -> Iterator[Finding]:
    """Yield a warning where a method that unfreezes parameters is called in a certain epoch, after they were frozen."""
    if not code.wraps_models:
        return
    setters = [
        (method, home, value)
        for home, method, node in _setting_methods(code)
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
            yield _thawed(module, call)


def thawed_by_argument(code: Code) -> Iterator[Finding]:
    """Yield a warning where a method sets requires_grad to what it is given: at first perhaps False, later True."""
    setters = {
        method.name: (method, name)
        for _, method, node in _setting_methods(code)
        if (name := _parameter_set(node, method)) and len(code.program.methods[method.name]) == 1
    }
    calls = [
        (module, call, given_for(call, *setters[call.func.attr]))
        for module, call, _ in code.reached.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in setters
    ]
    is_frozen = any(
        getattr(module.function_of(call), "name", "") in ("__init__", "__post_init__", "main")
        and code.values.of(given, module) is not True
        for module, call, given in calls
    )
    for module, call, given in calls:
        if is_frozen and given is not None and code.values.of(given, module) is True and _is_at_a_step(call, module):
            yield _thawed(module, call)
            return


def _thawed(module: Module, node: ast.AST) -> Finding:
    return Finding(
        "warning",
        "thawed-later",
        module.where(node),
        "DistributedDataParallel does not synchronize parameters that were frozen when it got the model",
        "unfreeze them before, or wrap the model again",
    )


def _setting_methods(code: Code) -> Iterator[tuple[Module, Function, ast.AST]]:
    """Yield the methods that set requires_grad, each with the node that does so."""
    methods = {method for found in code.program.methods.values() for _, _, method in found}
    for module, node in code.program.of(ast.Assign, ast.Call):
        around = module.above(node) if _gradient_set(node) is not None else ()
        yield from ((module, one, node) for one in around if isinstance(one, FUNCTIONS) and one in methods)


def _parameter_set(node: ast.AST, method: Function) -> str:
    """Return the parameter of a method that it sets requires_grad to."""
    value = _gradient_set(node)
    own = {arg.arg for arg in method.args.args}
    return value.id if isinstance(value, ast.Name) and value.id in own else ""


def _is_at_a_step(node: ast.AST, module: Module) -> bool:
    """Return whether a node depends on a counter: by a condition, or in a function that is given the epoch."""
    function = module.function_of(node)
    if function is not None and any(_COUNTER.fullmatch(name) for name in parameters(function)):
        return True
    tests = [walk(above.test) for above in module.above(node) if isinstance(above, ast.If)]
    compares = (part for test in tests for part in test if isinstance(part, ast.Compare))
    return any(isinstance(part.ops[0], (ast.Eq, ast.GtE)) for part in compares)


def thawed_inside(code: Code) -> Iterator[Finding]:
    """Yield a warning where parameters are unfrozen through the wrapper, or a part that was frozen in some epoch."""
    set_to = [
        (module, node, value)
        for module, node in code.program.of(ast.Assign, ast.Call)
        if (value := _sets_gradient(code, node, module)) is not None and code.may_be_used(node, module)
    ]
    if not code.wraps_models or all(value is True for _, _, value in set_to):
        return
    frozen = {(_part(node, module), module.scope_of(node)) for module, node, value in set_to if value is False}
    for module, node, value in set_to:
        scope = module.scope_of(node)
        wraps_again = any(
            isinstance(one, ast.Call) and is_ddp(code.program.name_of(one.func, module)) for one in walk(scope)
        )
        # What the same function freezes and unfreezes, it does in each step, as for the two models of a GAN.
        elsewhere = {part for part, where in frozen if where is not scope} - {""}
        is_late = _is_at_a_step(node, module) and _part(node, module) in elsewhere
        if value is True and not wraps_again and (is_late or _INSIDE.search(_owner(node, module))):
            yield _thawed(module, node)


def thawed_by_helper(code: Code) -> Iterator[Finding]:
    """Yield a warning where a function gets parameters from the wrapper in some epoch, and unfreezes them.

    `set_trainable(model.module.neck_parameters(), True)`, where other code freezes parameters.
    """
    freezes = any(
        _sets_gradient(code, node, module) is False and code.may_be_used(node, module)
        for module, node in code.program.of(ast.Assign, ast.Call)
    )
    for module, call, _ in code.reached.calls if code.wraps_models and freezes else ():
        found = code.program.called(call, module)
        is_of_wrapper = any(".module." in unparsed(given) and "param" in unparsed(given) for given in call.args)
        if not is_of_wrapper or found is None or not isinstance(found[1], FUNCTIONS) or not _is_at_a_step(call, module):
            continue
        values = [_sets_gradient(code, node, found[0], call, found[1]) for node in walk(found[1])]
        if True in [value for value in values if isinstance(value, bool)]:
            yield _thawed(module, call)
            return


def _part(node: ast.AST, module: Module) -> str:
    """Return the part of a model whose parameters a loop goes through: `for p in model.backbone.parameters()`."""
    found = re.search(r"\.(\w+)\.(?:named_)?parameters\(", _owner(node, module))
    return found[1] if found else ""


def _owner(node: ast.AST, module: Module) -> str:
    """Return whose gradients a statement switches, with what a loop around it goes through."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.func if isinstance(node, ast.Call) else node
    name = spelled(target).partition(".")[0]
    loops = (one for one in module.above(node) if isinstance(one, ast.For))
    through = (unparsed(one.iter) for one in loops if name in unparsed(one.target).split(", "))
    return " ".join((unparsed(target), *through))


def _is_in_epoch(call: ast.Call, module: Module) -> bool:
    """Return whether a call is in a loop, under a condition that compares: in a certain epoch, not in each."""
    above = list(module.above(call))
    is_looped = any(isinstance(one, (ast.For, ast.While)) for one in above)
    return is_looped and any(isinstance(one, ast.If) and isinstance(one.test, ast.Compare) for one in above)


def _set_by_function(code: Code, node: ast.AST, one: Wrapped) -> Iterator[object]:
    """Yield what a call sets requires_grad of parameters to, in a function that is given the model, or its method."""
    found = _function_of_model(code, node, one) if isinstance(node, ast.Call) else None
    if found is None or not isinstance(node, ast.Call):
        return
    home, function = found
    own = {arg.arg for arg in function.args.args if _is_model(given_for(node, function, arg.arg), one)} | {"self"}
    for loop in (inner for inner in walk(function) if isinstance(inner, ast.For)):
        if own & {name.id for name in walk(loop.iter) if isinstance(name, ast.Name)}:
            own |= {name.id for name in walk(loop.target) if isinstance(name, ast.Name)}
    for inner in walk(function):
        target = inner.targets[0] if isinstance(inner, ast.Assign) else getattr(inner, "func", inner)
        value = _sets_gradient(code, inner, home, node, function) if spelled(target).partition(".")[0] in own else None
        if value is not None:
            yield value


def _is_model(node: ast.AST | None, one: Wrapped) -> bool:
    """Return whether an expression is the model, the wrapper, or a part of it: `model.module.backbone`."""
    return node is not None and spelled(node).partition(".")[0] in _names_of(one)


def _names_of(one: Wrapped) -> set[str]:
    """Return the variables that hold a model or its wrapper: `model_without_ddp = model`, or `= model.module`."""
    names = {one.model.id, one.wrapper} - {""}
    for node in (node for node in walk(one.scope) if isinstance(node, ast.Assign)):
        if spelled(node.value).removesuffix(".module") in names and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
    return names


def _sets_gradient(
    code: Code, node: ast.AST, module: Module, call: ast.Call | None = None, function: Function | None = None
) -> object:
    """Return what a node sets requires_grad to; None for any other node. A parameter is what the call gives for it."""
    value = _gradient_set(node)
    if value is None:
        return None
    source = last_value(value, module) if isinstance(value, ast.Name) else value
    if isinstance(source, ast.Attribute) and source.attr == "requires_grad":
        return UNKNOWN  # it stays as it was
    if call is not None and function is not None and isinstance(value, ast.Name):
        return code.values.of(given_for(call, function, value.id) or value, module)
    return code.values.of(value, module)


def _gradient_set(node: ast.AST) -> ast.expr | None:
    """Return the expression that a node sets requires_grad to; None for any other node."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        return node.value if node.targets[0].attr == "requires_grad" else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        return node.args[0] if node.args else ast.Constant(True)
    return None


def _function_of_model(code: Code, call: ast.Call, one: Wrapped) -> tuple[Module, Function] | None:
    """Return the function of the program that a call gives the model to, or the method that it calls of the model."""
    models = _names_of(one)
    found = code.program.definition(code.program.name_of(call.func, one.module))
    if found is None and isinstance(call.func, ast.Attribute):
        methods = code.program.methods.get(call.func.attr, ())
        is_of_model = unparsed(call.func.value).removesuffix(".module") in models
        return (methods[0][0], methods[0][2]) if is_of_model and len(methods) == 1 else None
    is_given = any(_is_model(arg, one) for arg in call.args)
    return found if is_given and found and not isinstance(found[1], ast.ClassDef) else None  # type: ignore[return-value]


def _is_about_others(call: ast.Call, one: Wrapped) -> bool:
    """Return whether a call as a statement of its own gets variables, and none of them is the model."""
    names = [given for given in call.args if isinstance(given, (ast.Name, ast.Attribute))]
    is_alone = isinstance(one.module.parents.get(call), ast.Expr)
    return is_alone and bool(names) and not any(_is_model(given, one) for given in names)


def _freezes_by_call(code: Code, one: Wrapped) -> bool:
    """Return whether a function that is called before the model is wrapped freezes parameters."""
    for call in (node for node in walk(one.scope) if isinstance(node, ast.Call)):
        found = code.program.definition(code.program.name_of(call.func, one.module))
        if found is None or call.lineno >= one.call.lineno or _is_about_others(call, one):
            continue
        made = [node for node in found[1].body if getattr(node, "name", "") == "__init__"]
        text = "\n".join(map(unparsed, made if isinstance(found[1], ast.ClassDef) else [found[1]]))
        is_told = any(isinstance(arg, ast.Constant) and arg.value is False for arg in call.args)
        if _FREEZES.search(text) or (is_told and "requires_grad" in text):
            return True
    return False
