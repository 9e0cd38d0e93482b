"""Models and optimizers that the training uses, and that Accelerator.prepare() does not get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import ACCELERATOR, Code
from jobsubmit.check.origins import words_of
from jobsubmit.check.program.calls import argument, hides_arguments
from jobsubmit.check.program.module import Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import assigned_to
from jobsubmit.check.wrapper import is_prepare
from jobsubmit.common.finding import Finding

_PREPARES_ONE = ("prepare_model", "prepare_optimizer")
_OF_MODEL = re.compile(r"\b(\w+)\.(?:named_)?parameters\(\)")


def check_unprepared(code: Code) -> Iterator[Finding]:
    """Yield a warning for an optimizer that steps, or a model that is trained, without having been prepared.

    Both have to be variables of one function, which also prepares others by their names.
    """
    prepares = [(module, call) for module, call, _ in code.reached.calls if is_prepare(call)]
    is_plain = all(isinstance(arg, ast.Name) for _, call in prepares for arg in call.args)
    is_plain = is_plain and code.names.isdisjoint(_PREPARES_ONE)
    if not prepares or not is_plain or any(hides_arguments(call) for _, call in prepares):
        return
    given = {arg.id for _, call in prepares for arg in call.args if isinstance(arg, ast.Name)}
    for module, call, name in code.reached.calls:
        statement = module.parents.get(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        is_optimizer = name.startswith("torch.optim.") and "lr_scheduler" not in name
        if not is_optimizer or not isinstance(target, ast.Name) or not _prepares_here(prepares, call, module):
            continue
        if target.id not in given:
            yield from _steps_too_often(code, target, module)
        else:
            yield from _trains_alone(code, call, given, module)


def _prepares_here(prepares: list[tuple[Module, ast.Call]], node: ast.AST, module: Module) -> bool:
    """Return whether the function around a node prepares something after it."""
    scope = module.scope_of(node)
    return any(home is module and home.scope_of(call) is scope for home, call in prepares)


def _steps_too_often(code: Code, optimizer: ast.Name, module: Module) -> Iterator[Finding]:
    """Yield a warning where an optimizer steps inside accumulate(), which only a prepared one heeds."""
    steps = [
        node
        for node in walk(module.scope_of(optimizer))
        if isinstance(node, ast.Call) and spelled(node.func) == f"{optimizer.id}.step"
    ]
    for step in steps:
        tests = (above.test for above in module.above(step) if isinstance(above, ast.If))
        if any("sync_gradients" in unparsed(test) for test in tests):
            continue
        accumulates = any(
            isinstance(above, ast.With) and any(".accumulate(" in unparsed(item) for item in above.items)
            for above in module.above(step)
        )
        if accumulates and not _steps_each_time(code):
            yield Finding(
                "warning",
                "not-prepared",
                module.where(step),
                f"{optimizer.id} is not given to accelerator.prepare: it steps in every pass, also with the gradients "
                "that accumulate() does not average, and the models drift apart",
                f"pass it as well: {optimizer.id} = accelerator.prepare({optimizer.id})",
            )
            return


def _steps_each_time(code: Code) -> bool:
    """Return whether no Accelerator accumulates gradients over several passes."""
    given = [(home, argument(call, "gradient_accumulation_steps")) for home, call in code.calls(ACCELERATOR)]
    return all(value is None or code.values.of(value, home) == 1 for home, value in given)


def _trains_alone(code: Code, made: ast.Call, given: set[str], module: Module) -> Iterator[Finding]:
    """Yield a warning where an optimizer is prepared, and the model whose parameters it has is not."""
    parameters = argument(made, "params", 0)
    models = set(_OF_MODEL.findall(words_of(code, parameters, module))) if parameters is not None else set[str]()
    scope = module.scope_of(made)
    calls = [node for node in walk(scope) if isinstance(node, ast.Call)]
    is_backward = any(spelled(call.func).endswith("accelerator.backward") for call in calls)
    if not is_backward or models & given or len(models) != 1:
        return
    model = models.pop()
    if len(module.stores.get((scope, model), ())) > 1 or any(_is_made_of(one, model, made, module) for one in given):
        return
    for call in calls:
        in_loop = any(isinstance(above, (ast.For, ast.While)) for above in module.above(call))
        if in_loop and spelled(call.func) == model and call.lineno > made.lineno:
            yield Finding(
                "warning",
                "not-prepared",
                module.where(call),
                f"{model} is not given to accelerator.prepare: nothing averages its gradients, and each process trains "
                "a model of its own",
                f"pass it as well: {model} = accelerator.prepare({model})",
            )
            return


def _is_made_of(name: str, model: str, optimizer: ast.Call, module: Module) -> bool:
    """Return whether a variable holds something around a model, other than its optimizer: `torch.compile(model)`."""
    stores = module.stores.get((module.scope_of(optimizer), name), ())
    made = [assigned_to(store, module) for store in stores]
    return any(
        one is not optimizer and isinstance(node, ast.Name) and node.id == model
        for one in made
        if one is not None and not _prepares(one)
        for node in walk(one)
    )


def _prepares(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and is_prepare(node)
