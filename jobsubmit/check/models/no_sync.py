"""Steps without synchronization: no_sync() in the wrong ones, or in all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code, trains
from jobsubmit.check.collectives.branches import after, leaves
from jobsubmit.check.origins import last_value
from jobsubmit.check.program.calls import argument, given_for
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters, position
from jobsubmit.common.finding import Finding

_OF_SEVERAL = re.compile(r"dist|ddp|parallel|world|gpu", re.IGNORECASE)
_STEPS = re.compile(r"\b\w*(?:optim|opt|scaler)\w*\.step$")
_STEP = re.compile(r"^\w*(?:step|micro|accum|\bi\b|\bidx)\w*$")


def check_no_sync(code: Code) -> Iterator[Finding]:
    """Yield a warning where gradients are never averaged, or not in the step that ends with the optimizer's."""
    if code.world_size == 1:
        return
    yield from _inverted(code)
    yield from _synchronized_in_other_step(code)
    if not code.has_framework:
        yield from _never_synchronized(code)
        yield from _stepped_unsynchronized(code)
        yield from _switched_in_first_step(code)
        yield from _switched_after_last_step(code)
        yield from _synchronized_after_last_step(code)


def _never_synchronized(code: Code) -> Iterator[Finding]:
    """Yield a warning where every backward is under no_sync(): then no gradient is ever averaged."""
    calls = [
        (module, call)
        for module, call, _ in code.reached.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
    ]
    is_own = "no_sync" in code.program.methods  # which decides by itself
    if calls and not is_own and all(any(map(_is_no_sync, module.above(call))) for module, call in calls):
        module, call = calls[0]
        yield Finding(
            "warning",
            "never-synchronized",
            module.where(call),
            "every backward() is under no_sync(): the gradients are never averaged",
            "call the last backward() before optimizer.step() outside of no_sync()",
        )


def _stepped_unsynchronized(code: Code) -> Iterator[Finding]:
    """Yield a warning where a block under no_sync() has all of a step's gradients, and the optimizer steps after it.

    `with model.no_sync(): for batch in parts: loss(batch).backward()`, and then `optimizer.step()`.
    """
    for module, node in code.program.of(ast.With):
        is_looped = any(isinstance(one, (ast.For, ast.While)) for one in walk(node))
        if not (is_looped and trains(node) and _is_always_skipping(code, node, module)):
            continue
        step = _step_after(node, module) if code.reached.of(node, module) else None
        if step is not None:
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(node),
                f"all of a step's gradients are computed under no_sync(), and {unparsed(step)}() follows: they "
                "are never averaged",
                "call the last backward() before optimizer.step() outside of no_sync()",
            )
            return


def _is_always_skipping(code: Code, node: ast.With, module: Module) -> bool:
    """Return whether a block is under no_sync() wherever several processes train, directly or by a variable."""
    for item in node.items:
        held = item.context_expr
        made = last_value(held, module) if isinstance(held, ast.Name) else held
        if isinstance(made, ast.IfExp):
            is_parallel = code.values.truth(made.test, module) or _OF_SEVERAL.search(unparsed(made.test))
            made = made.body if is_parallel else None
        if made is not None and _names_no_sync(made):
            return True
    return False


def _step_after(node: ast.With, module: Module) -> ast.Attribute | None:
    """Return the step of an optimizer that follows a block in its function, if no gradients are computed between."""
    later = [one for one in walk(module.scope_of(node)) if isinstance(one, ast.Attribute)]
    later = sorted((one for one in later if one.lineno > (node.end_lineno or 0)), key=position)
    first = next((one for one in later if one.attr == "backward" or _STEPS.search(unparsed(one))), None)
    return None if first is None or first.attr == "backward" else first


def _inverted(code: Code) -> Iterator[Finding]:
    """Yield a warning where the step before the optimizer's is the one without synchronization."""
    for module, node in code.program.of(ast.IfExp, ast.If):
        is_choice = isinstance(node, ast.IfExp)
        skips = _names_no_sync(node.body) if is_choice else any(map(_skips, node.body))
        is_last = skips and _is_last_step(code, node.test, module)
        if not is_last and _syncs_in_first_step(code, node, module) and code.reached.of(node, module):
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(node),
                f"the gradients are averaged only in the first of the steps that add up (`{unparsed(node.test)}`): "
                "what the later ones add stays on each process",
                "let no_sync() hold in all steps but the last",
            )
            return
        if is_last and code.reached.of(node, module):
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(node),
                f"no_sync() holds where {unparsed(node.test)}, in the step that ends with optimizer.step(): the "
                "gradients of this step are not averaged",
                "turn the condition around: no_sync() belongs to all steps but the last",
            )
            return


def _synchronized_in_other_step(code: Code) -> Iterator[Finding]:
    """Yield a warning where Fabric synchronizes in another step than the one after which the optimizer steps.

    `fabric.no_backward_sync(model, enabled=step % n != 0)`, and then `if (step + 1) % n == 0: optimizer.step()`.
    """
    for module, node in code.program.of(ast.With):
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        skips = [call for call in calls if getattr(call.func, "attr", "") == "no_backward_sync"]
        enabled = argument(skips[0], "enabled", 1) if skips else None
        synchronized = _counted_in(enabled, module, if_true=False) if enabled is not None else None
        if synchronized is None or not code.reached.of(node, module):
            continue
        for later in after(node, module):
            is_step = isinstance(later, ast.If) and any(_STEPS.search(unparsed(one)) for one in walk(later))
            stepped = _counted_in(later.test, module, if_true=True) if isinstance(later, ast.If) and is_step else None
            if _counts(later, synchronized[0]):
                break  # the same number is another one from here on
            if stepped is not None and stepped[1:] == synchronized[1:] and stepped[0] != synchronized[0]:
                yield Finding(
                    "warning",
                    "never-synchronized",
                    module.where(node),
                    f"the gradients are averaged where {synchronized[0]} is a multiple of {synchronized[1]}, and the "
                    f"optimizer steps where {stepped[0]} is one: the gradients of the other steps are not averaged",
                    "synchronize in the step that ends with optimizer.step()",
                )
                return


def _counted_in(test: ast.expr, module: Module, *, if_true: bool) -> tuple[str, str] | None:
    """Return the counter and the number of which it is a multiple where a condition holds, or does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _counted_in(test.operand, module, if_true=not if_true)
    made = last_value(test, module) if isinstance(test, ast.Name) else test
    match made:
        case ast.Compare(
            left=ast.BinOp(left=counter, op=ast.Mod(), right=number),
            ops=[ast.Eq() | ast.NotEq() as operator],
            comparators=[ast.Constant(value=0)],
        ) if isinstance(operator, ast.Eq) is if_true:
            counted = last_value(counter, module) if isinstance(counter, ast.Name) else None
            return unparsed(counted or counter), unparsed(number)
    return None


def _counts(statement: ast.stmt, counter: str) -> bool:
    """Return whether a statement sets a variable that a counter is made of: `step += 1`."""
    stores = (node for node in walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return any(re.search(rf"\b{store.id}\b", counter) for store in stores)


def _switched_in_first_step(code: Code) -> Iterator[Finding]:
    """Yield a warning for `model.require_backward_grad_sync = micro_step == 0`, in a loop over the micro steps."""
    for module, node in code.program.of(ast.Assign):
        target, test = node.targets[0], node.value
        is_switch = isinstance(target, ast.Attribute) and target.attr == "require_backward_grad_sync"
        if not is_switch or not isinstance(test, ast.Compare) or not code.reached.of(node, module):
            continue
        is_first = isinstance(test.ops[0], ast.Eq) and unparsed(test.comparators[0]) == "0"
        if is_first and _is_counted_by_loop(code, test.left, node, module):
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(node),
                f"the gradients are averaged only in the first of the steps that add up (`{unparsed(test)}`): "
                "what the later ones add stays on each process",
                "average in the last of these steps",
            )
            return


def _switched_after_last_step(code: Code) -> Iterator[Finding]:
    """Yield a warning where the gradients would be averaged in a step that no process takes.

    `steps //= world_size`, `for step in range(steps)`, and then `step == config["steps"] - 1`, the number before that.
    """
    for module, node in code.program.of(ast.Assign):
        target = node.targets[0]
        is_switch = isinstance(target, ast.Attribute) and target.attr == "require_backward_grad_sync"
        match node.value if is_switch else None:
            case ast.Compare(
                left=ast.Name(id=counter), ops=[ast.Eq()], comparators=[ast.BinOp(left=total, op=ast.Sub())]
            ):
                steps = _range_of(counter, node, module)
            case _:
                continue
        if steps is not None and _is_divided(code, steps, total, module) and code.reached.of(node, module):
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(node),
                f"`{unparsed(node.value)}` never holds: each process takes only {steps.id} of these steps, so the "
                "gradients are never averaged",
                f"compare with {steps.id} - 1",
            )
            return


def _synchronized_after_last_step(code: Code) -> Iterator[Finding]:
    """Yield a warning where only `step == steps` would average the gradients, in `for step in range(steps)`."""
    for module, test in code.program.of(ast.Compare):
        if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq) or not isinstance(test.left, ast.Name):
            continue
        if not _is_after_last(code, test, module) or not code.reached.of(test, module):
            continue
        if _synchronizes_if(code, test, module):
            total = unparsed(test.comparators[0])
            yield Finding(
                "warning",
                "never-synchronized",
                module.where(test),
                f"`{unparsed(test)}` never holds, because the last step is number {total} - 1: the gradients are never "
                "averaged",
                f"compare with {total} - 1",
            )
            return


def _is_after_last(code: Code, test: ast.Compare, module: Module) -> bool:
    """Return whether a condition compares the counter of a loop with its end, here or in what each call gives."""
    counter, total = test.left, test.comparators[0]
    function = module.function_of(test)
    own = parameters(function) if function is not None else set()
    if function is None or spelled(counter) not in own or not isinstance(total, ast.Name) or total.id not in own:
        return _is_end(counter, total, module)
    calls = code.program.calls_to(function, module) or code.program.calls_of_attribute.get(function.name, ())
    given = [
        (home, given_for(call, function, spelled(counter)), given_for(call, function, total.id))
        for home, call in calls
        if code.reached.of(call, home)
    ]
    return bool(given) and all(
        one is not None and end is not None and _is_end(one, end, home) for home, one, end in given
    )


def _is_end(counter: ast.expr, total: ast.expr, module: Module) -> bool:
    """Return whether a variable is only counted by a loop around it, up to one less than a total."""
    if not isinstance(counter, ast.Name):
        return False
    is_counted = len(module.stores.get((module.scope_of(counter), counter.id), ())) == 1
    end = _end_of_range(counter.id, counter, module)
    return is_counted and end is not None and unparsed(end) == unparsed(total)


def _synchronizes_if(code: Code, test: ast.Compare, module: Module) -> bool:
    """Return whether gradients are averaged only where a condition holds: it chooses no_sync(), or is given to that."""
    above = module.parents.get(test)
    if isinstance(above, ast.Assign):
        return spelled(above.targets[0]).endswith(".require_backward_grad_sync")
    if isinstance(above, (ast.If, ast.IfExp)):
        otherwise = above.orelse if isinstance(above, ast.If) else [above.orelse]
        return above.test is test and any(map(_mentions_no_sync, otherwise))
    call = module.parents.get(above) if isinstance(above, ast.keyword) else above
    if not isinstance(call, ast.Call):
        return False
    found = code.program.called(call, module)
    if found is None or not isinstance(found[1], FUNCTIONS) or not _mentions_no_sync(found[1]):
        return False
    given = [name for name in parameters(found[1]) if given_for(call, found[1], name) is test]
    return any("sync" in name and not name.startswith("no") for name in given)


def _mentions_no_sync(node: ast.AST) -> bool:
    return any(_names_no_sync(one) for one in walk(node))


def _range_of(counter: str, node: ast.AST, module: Module) -> ast.Name | None:
    """Return the variable up to which a loop around a node counts."""
    end = _end_of_range(counter, node, module)
    return end if isinstance(end, ast.Name) else None


def _end_of_range(counter: str, node: ast.AST, module: Module) -> ast.expr | None:
    """Return the number up to which a loop around a node counts."""
    for loop in module.above(node):
        match loop:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[end])):
                if name == counter:
                    return end
    return None


def _is_divided(code: Code, steps: ast.Name, total: ast.expr, module: Module) -> bool:
    """Return whether a number of steps is a part of a total: `steps //= n`, or `steps = total // n`."""
    has_same_name = isinstance(total, ast.Subscript) and getattr(total.slice, "value", None) == steps.id
    for store in module.stores.get((module.scope_of(steps), steps.id), ()):
        match module.parents.get(store):
            case ast.AugAssign(op=ast.FloorDiv()) as divided:
                if has_same_name and code.reached.of(divided, module):
                    return True
            case ast.Assign(value=ast.BinOp(left=left, op=ast.FloorDiv())) as divided:
                if unparsed(left) == unparsed(total) and code.reached.of(divided, module):
                    return True
    return False


def _syncs_in_first_step(code: Code, node: ast.If | ast.IfExp, module: Module) -> bool:
    """Return whether a condition holds in the first of some steps, and no_sync() in all others."""
    test = last_value(node.test, module) if isinstance(node.test, ast.Name) else node.test
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    counter, is_first = next((found for part in parts if part and (found := _is_zero(part))[0]), (None, True))
    if counter is None or not _synchronizes(node, module, if_true=is_first):
        return False
    return (
        _STEP.search(unparsed(counter)) is not None
        or _is_counted_later(counter, node, module)
        or _is_counted_by_loop(code, counter, node, module)
        or _is_stepped_in_last(code, counter, node, module)
    )


def _synchronizes(node: ast.If | ast.IfExp, module: Module, *, if_true: bool) -> bool:
    """Return whether no_sync() is in one branch of a condition, and not in the other, which is that for true or not."""
    if isinstance(node, ast.IfExp):
        first, others = (node.body, node.orelse) if if_true else (node.orelse, node.body)
        return _names_no_sync(others) and not _names_no_sync(first)
    rest = node.orelse or (after(node, module) if leaves(node.body) else [])
    return _is_among(rest if if_true else node.body) and not _is_among(node.body if if_true else rest)


def _is_zero(test: ast.expr) -> tuple[ast.expr | None, bool]:
    """Return what a condition compares with 0, and whether it holds then: `i % n` of `i % n == 0` or `i % n != 0`."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as operator], comparators=[ast.Constant(value=0)]):
            return left, isinstance(operator, ast.Eq)
        case ast.BinOp(op=ast.Mod()):
            return test, False
    return None, True


def _counter_of(period: ast.expr) -> ast.expr | None:
    """Return what counts in a period: `i` of `i % n`."""
    return period.left if isinstance(period, ast.BinOp) and isinstance(period.op, ast.Mod) else None


def _is_counted_later(period: ast.expr, node: ast.AST, module: Module) -> bool:
    """Return whether a loop looks at `i % n` once more after it has added to `i`, and steps by that."""
    count = _counter_of(period)
    loop = next((one for one in module.above(node) if isinstance(one, (ast.For, ast.While))), None)
    if not isinstance(count, ast.Name) or loop is None:
        return False
    text, counter = unparsed(period), count.id
    later = [one for one in walk(loop) if getattr(one, "lineno", 0) > (node.end_lineno or 0)]  # type: ignore[attr-defined]
    added = [one for one in later if isinstance(one, ast.AugAssign) and unparsed(one) == f"{counter} += 1"]
    tests = [one for one in later if isinstance(one, ast.If) and text in unparsed(one.test)]
    return bool(added) and any(one.lineno > added[0].lineno for one in tests)


def _is_counted_by_loop(code: Code, period: ast.expr, node: ast.AST, module: Module) -> bool:
    """Return whether a loop around a condition, or around its function, counts what it looks at: `for i in range(n)`.

    Of `i % n`, it counts up to n.
    """
    for home, place, name, end in _counted_at(code, period, node, module):
        loop = next((one for one in home.above(place) if isinstance(one, ast.For)), None)
        if loop is not None and unparsed(loop.target) == unparsed(name):
            ends = [unparsed(one) for one in loop.iter.args] if isinstance(loop.iter, ast.Call) else []
            return end is None or ends == [unparsed(end)]
    return False


def _is_stepped_in_last(code: Code, period: ast.expr, node: ast.AST, module: Module) -> bool:
    """Return whether the loop around a condition on `i % n`, or around its function, steps by `i + 1`."""
    for home, place, name, end in _counted_at(code, period, node, module):
        loop = next((one for one in home.above(place) if isinstance(one, (ast.For, ast.While))), None)
        step = f"({unparsed(name)} + 1) % "
        tests = (one for one in walk(loop) if isinstance(one, ast.If)) if loop and end else ()
        ends = (one for one in tests if step in unparsed(one.test))  # of some steps, or the time of a checkpoint
        if any(unparsed(end) in unparsed(one.test) or _steps(one) for one in ends if end is not None):
            return True
    return False


def _steps(node: ast.If) -> bool:
    """Return whether an optimizer steps where a condition holds."""
    inner = (part for statement in node.body for part in walk(statement))
    return any(isinstance(part, ast.Attribute) and _STEPS.search(unparsed(part)) for part in inner)


def _counted_at(
    code: Code, period: ast.expr, node: ast.AST, module: Module
) -> Iterator[tuple[Module, ast.AST, ast.expr, ast.expr | None]]:
    """Yield where a condition is on `i` or on `i % n`, with both: in place, and in the calls that give its function i.

    Without a period, the n is None.
    """
    counter, end, function = _counter_of(period) or period, getattr(period, "right", None), module.function_of(node)
    if not isinstance(counter, ast.Name):
        return
    yield module, node, counter, end
    if function is None:
        return
    for home, call, _ in code.reached.calls:
        if _calls(code, call, function, home, module):
            given = given_for(call, function, counter.id)
            given_end = given_for(call, function, end.id) if isinstance(end, ast.Name) else None
            if given is not None:
                yield home, call, given, given_end or end


def _calls(code: Code, call: ast.Call, function: Function, home: Module, module: Module) -> bool:
    """Return whether a call is one of a function, or of an object that may have it as its method."""
    found = code.program.called(call, home)
    if found is not None:
        return found[1] is function
    is_method = isinstance(module.parents.get(function), ast.ClassDef)
    return is_method and isinstance(call.func, ast.Attribute) and call.func.attr == function.name


def _is_among(statements: list[ast.stmt]) -> bool:
    return any(_names_no_sync(inner) for statement in statements for inner in walk(statement))


def _is_last_step(code: Code, test: ast.expr, module: Module) -> bool:
    """Return whether a condition holds in the last of some steps: `(i + 1) % n == 0`, `i == n - 1`."""
    if isinstance(test, ast.BoolOp):
        return any(_is_last_step(code, item, module) for item in test.values)
    if isinstance(test, ast.Name):
        made = last_value(test, module)
        return made is not None and (_is_last_step(code, made, module) or _decides_step(test, made, module))
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    left, right = test.left, test.comparators[0]
    is_period = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.left, ast.BinOp)
    is_end = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and unparsed(right.right) == "1"
    return (is_period and unparsed(right) == "0") or is_end


def _decides_step(name: ast.Name, made: ast.expr, module: Module) -> bool:
    """Return whether a variable is a condition on a count, `count % n == 0`, and the optimizer steps where it holds."""
    if not isinstance(made, ast.Compare) or not any(isinstance(one, ast.Mod) for one in walk(made)):
        return False
    tests = (one for one in walk(module.scope_of(name)) if isinstance(one, ast.If) and spelled(one.test) == name.id)
    return any(map(_steps, tests))


def _names_no_sync(node: ast.AST) -> bool:
    """Return whether an expression is no_sync(), or the method itself, to be called later."""
    named = node.func if isinstance(node, ast.Call) else node
    return isinstance(named, ast.Attribute) and named.attr == "no_sync"


def _skips(node: ast.AST) -> bool:
    """Return whether a statement begins no_sync(), or chooses it for later."""
    return _is_no_sync(node) or (isinstance(node, ast.Assign) and _names_no_sync(node.value))


def _is_no_sync(node: ast.AST) -> bool:
    items = node.items if isinstance(node, ast.With) else []
    return any(_names_no_sync(item.context_expr) for item in items)
