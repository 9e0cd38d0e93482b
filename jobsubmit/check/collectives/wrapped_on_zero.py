"""Wrapped models with buffers that only rank 0 calls: DistributedDataParallel sends the buffers to all ranks first.

Source: `DistributedDataParallel._pre_forward` of torch 1.11 to 2.x broadcasts the buffers in the first call after a
training step, also in evaluation mode and without gradients.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jobsubmit.check.code import Code, is_ddp
from jobsubmit.check.collectives.rank_zero import branches_of_zero
from jobsubmit.check.origins import origins, words_of
from jobsubmit.check.program.calls import argument, given_for, hides_arguments
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, spelled, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.check.wrapper import is_wrapped
from jobsubmit.common.finding import Finding

_HAS_BUFFERS = re.compile(
    r"^(?:Sync)?BatchNorm(?:[123]d)?$|^(?:wide_)?(?:resnet|resnext|densenet|mobilenet)", re.IGNORECASE
)
_BUFFERS = re.compile(r"BatchNorm|resnet|resnext|densenet|mobilenet", re.IGNORECASE)
_SETTING = "broadcast_buffers"
_MAY_LEAVE_BUFFERS = frozenset(["require_forward_param_sync", "track_running_stats"])
_EVALUATES = re.compile(r"val|test|eval", re.IGNORECASE)
_DEEPEST = 3  # functions that hand on the model


def check_wrapped_on_zero(code: Code) -> Iterator[Finding]:
    """Yield a warning where only rank 0 calls a wrapped model that has buffers."""
    if code.has_framework or not code.is_parallel or not code.wraps_models or not _sends_buffers(code):
        return
    for module, body, others, _ in branches_of_zero(code):
        if any(
            isinstance(node, ast.Call) and _model_called(code, node, module) for one in others for node in walk(one)
        ):
            continue
        for call in (node for statement in body for node in walk(statement) if isinstance(node, ast.Call)):
            model = _model_called(code, call, module) if code.reached.of(call, module) else None
            if (
                model is not None
                and not _leaves_buffers(code, model, module)
                and not _is_evaluated_before(call, model, module)
            ):
                name = spelled(model)
                yield Finding(
                    "warning",
                    "rank-0-collective",
                    module.where(call),
                    f"only rank 0 calls {name} here: DistributedDataParallel sends its buffers (those of BatchNorm) to "
                    "all ranks first, and the others do not take part: the job may hang",
                    f"use {name}.module here, or let every rank evaluate its part",
                )
                return


def _sends_buffers(code: Code) -> bool:
    """Return whether a model may have buffers, and no setting may keep a wrapper from sending them."""
    settings = {keyword.arg for _, keyword in code.program.of(ast.keyword)} | code.names_in_use
    of_libraries = {name for _, _, name in code.program.calls if code.program.definition(name) is None and "." in name}
    makes = (name.rpartition(".")[2] for name in of_libraries)
    may_leave = settings & _MAY_LEAVE_BUFFERS or all(_has_setting(wrap) for _, wrap in _wraps(code))
    return not may_leave and any(map(_HAS_BUFFERS.search, makes))


def _wraps(code: Code) -> Iterator[tuple[Module, ast.Call]]:
    return ((module, call) for module, call, name in code.reached.calls if is_ddp(name))


def _has_setting(wrap: ast.Call) -> bool:
    """Return whether a wrapper gets `broadcast_buffers`, or what it gets is not seen."""
    return argument(wrap, _SETTING) is not None or hides_arguments(wrap)


def _leaves_buffers(code: Code, model: ast.expr, at: Module) -> bool:
    """Return whether a model may be one whose wrapper has the setting: no wrapper of its name is without."""
    wraps = list(_wraps(code))
    plain = [(module, call) for module, call in wraps if not _has_setting(call)]
    if len(plain) == len(wraps):
        return False
    sending = {
        call: module.parents.get(call)
        for module, call in plain
        if _BUFFERS.search(words_of(code, argument(call, "module", 0) or call, module))
    }
    names = {spelled(target) for one in sending.values() if isinstance(one, ast.Assign) for target in one.targets}
    return spelled(model) not in names and not any(part in sending for _, part in origins(code, model, at))


def _is_evaluated_before(call: ast.Call, model: ast.expr, module: Module) -> bool:
    """Return whether the same function hands the model to an evaluation before: then the buffers were sent there."""
    calls = (node for node in walk(module.scope_of(call)) if isinstance(node, ast.Call) and node.lineno < call.lineno)
    return any(
        _EVALUATES.search(spelled(one.func)) and any(spelled(given) == spelled(model) for given in one.args)
        for one in calls
    )


def _model_called(code: Code, call: ast.Call, module: Module) -> ast.expr | None:
    """Return the wrapped model that a call calls, itself or by a function that gets it."""
    if isinstance(call.func, (ast.Name, ast.Attribute)) and is_wrapped(code, call.func, module):
        return call.func
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    models = [one for one in given if isinstance(one, (ast.Name, ast.Attribute)) and _may_be_wrapped(code, one, module)]
    return next((one for one in models if _is_called_in(code, call, one, module)), None)


def _may_be_wrapped(code: Code, model: ast.Name | ast.Attribute, module: Module) -> bool:
    """Return whether a variable holds a wrapper, or may do so, and another of that name here surely does."""
    found = is_wrapped(code, model, module)
    wraps = (module.parents.get(call) for home, call, name in code.reached.calls if is_ddp(name) and home is module)
    names = {spelled(target) for one in wraps if isinstance(one, ast.Assign) for target in one.targets}
    return spelled(model) in names if found is None else found


def _is_called_in(code: Code, call: ast.Call, model: ast.expr, module: Module, depth: int = 0) -> bool:
    """Return whether the function of a call calls a model that it gets, or hands it on to one that does."""
    found = code.program.called(call, module) or code.program.own_method_called(call, module)
    if found is None or not isinstance(found[1], FUNCTIONS) or depth > _DEEPEST:
        return False
    home, function = found[0], found[1]
    name = _parameter_for(call, function, model)
    if not name or not all(_is_for_none(one, name, home) for one in home.own_stores.get((function, name), ())):
        return False
    calls = [node for node in walk(function) if isinstance(node, ast.Call)]
    if any(isinstance(one.func, ast.Name) and one.func.id == name for one in calls):
        return True
    handed = [(one, arg) for one in calls for arg in one.args if isinstance(arg, ast.Name) and arg.id == name]
    return any(_is_called_in(code, one, arg, home, depth + 1) for one, arg in handed)


def _is_for_none(store: ast.AST, name: str, module: Module) -> bool:
    """Return whether a parameter is set only where it was not given: `if model is None:`."""
    statement = next((above for above in module.above(store) if isinstance(above, ast.stmt)), store)
    around = (above for above in module.above(store) if isinstance(above, ast.If) and statement in above.body)
    return any(unparsed(above.test) in (f"{name} is None", f"not {name}") for above in around)


def _parameter_for(call: ast.Call, function: Function, model: ast.expr) -> str:
    """Return the parameter of a function that gets a model in a call."""
    return next((name for name in parameters(function) if given_for(call, function, name) is model), "")
