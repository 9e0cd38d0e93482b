"""Gradients that a GradScaler has multiplied, clipped as if they were not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from jobsubmit.check.code import Code
from jobsubmit.check.origins import last_value, words_of
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.module import FUNCTIONS, Module, spelled, unparsed
from jobsubmit.check.program.objects import given_to_fields
from jobsubmit.check.program.registries import registered
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")
_SCALERS = ("torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler")
_IS_GPU = re.compile(r"[\w.]*device\w*\.type == 'cuda'|torch\.cuda\.is_available\(\)")
_OWN_CLIP = re.compile(r"clip_?grad", re.IGNORECASE)


def check_scaling(code: Code) -> Iterator[Finding]:
    """Yield a warning for a limit of gradients that are still multiplied by the scale, some ten thousands."""
    scalers = [(module, call) for module, call in code.calls(*_SCALERS)]
    if not scalers or code.has_framework or any(_is_off(code, call, module) is True for module, call in scalers):
        return
    is_on = all(_is_off(code, call, module) is False or _is_set(code, call, module) for module, call in scalers)
    for module, call in _clips(code):
        if _is_still_scaled(code, call, module) and (is_on or _is_unscaled_later(call, module)):
            yield Finding(
                "warning",
                "clipped-scaled",
                module.where(call),
                "these gradients are still multiplied by the scale of the GradScaler: the limit makes them far too "
                "small",
                "call scaler.unscale_(optimizer) before it",
            )
            return


def _clips(code: Code) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls that limit gradients, by torch or by a function of the program that is called so."""
    yield from code.calls(*_CLIPS)
    for module, call, _ in code.reached.calls:
        found = code.program.called(call, module) if _OWN_CLIP.search(spelled(call.func)) else None
        if found is not None and ".grad" in (text := unparsed(found[1])) and "mul_(" in text:
            yield module, call


def _is_still_scaled(code: Code, clip: ast.Call, module: Module) -> bool:
    """Return whether the last that happens to the gradients before a limit is that they are computed, scaled."""
    for statement in _before(clip, module):
        parts = _in_same_case(statement, clip, module)
        calls = [node for part in parts for node in walk(part) if isinstance(node, ast.Call)]
        if any(_is_method(call, "unscale_") for call in calls):
            return False
        if any(_is_scaled(call, module) for call in calls):
            return True
        if any(_is_method(call, "backward") for call in calls):
            return False
    function = module.function_of(clip)
    if function is not None and module.function_of(function) is not None:
        return False  # what calls it may have divided: GradScaler.step() does so before the optimizer's
    return "unscale_" not in code.names_in_use and any(_is_scaled(call, home) for home, call, _ in code.reached.calls)


def _in_same_case(statement: ast.stmt, node: ast.AST, module: Module) -> list[ast.stmt]:
    """Return what of a statement is executed beside a node: one branch only, if the node is under its condition."""
    if isinstance(statement, ast.If):
        for inner, outer in pairwise((node, *module.above(node))):
            if isinstance(outer, ast.If) and ast.dump(outer.test) == ast.dump(statement.test):
                return statement.orelse if inner in outer.orelse else statement.body
    return [statement]


def _before(node: ast.AST, module: Module) -> Iterator[ast.stmt]:
    """Yield the statements before a node in its block, the last one first, and then those before this block."""
    for inner, outer in pairwise((node, *module.above(node))):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(outer, name, None)
            if isinstance(block, list) and inner in block:
                yield from reversed(block[: block.index(inner)])
        if isinstance(outer, FUNCTIONS):
            return


def _is_off(code: Code, call: ast.Call, module: Module) -> bool | None:
    """Return whether a scaler does nothing, or None if that is not known."""
    enabled = argument(call, "enabled")
    parts = enabled.values if isinstance(enabled, ast.BoolOp) and isinstance(enabled.op, ast.And) else [enabled]
    values = [True if part is None or _asks_for_gpu(code, part) else code.values.truth(part, module) for part in parts]
    return True if False in values else None if None in values else False


def _asks_for_gpu(code: Code, node: ast.expr) -> bool:
    """Return whether a condition is that a device is a GPU, in a job that has GPUs: `device.type == "cuda"`."""
    return bool(code.facts.gpus) and _IS_GPU.fullmatch(unparsed(node)) is not None


def _is_set(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether a setting has a scaler scale, by its default or in a configuration: `enabled=config.fp16`."""
    enabled = argument(call, "enabled")
    parts = list(walk(enabled)) if enabled is not None else []
    names = {node.attr for node in parts if isinstance(node, ast.Attribute)}
    names |= {str(node.value).rpartition(".")[2] for node in parts if isinstance(node, ast.Constant)}
    defaults = [one for name in names for _, one in given_to_fields(code.program).get(name, ())]
    is_default = any(isinstance(one, ast.Constant) and one.value is True for one in defaults)
    text = registered(code.program, code.facts.argv).settings if names else ""
    if enabled is not None and _is_asked_for(code, enabled, module):
        return True
    return is_default or any(re.search(rf"\b{re.escape(name)}[\"']?\s*[:=]\s*[Tt]rue\b", text) for name in names)


def _is_asked_for(code: Code, node: ast.expr, module: Module) -> bool:
    """Return whether a setting comes from an option that the job gives, by its name: docopt's `arguments["--amp"]`."""
    given = {word.partition("=")[0] for word in code.facts.argv if word.startswith("--")}
    words = words_of(code, node, module) if given else ""
    return any(f"['{one}']" in words for one in given)


def _is_unscaled_later(clip: ast.Call, module: Module) -> bool:
    """Return whether the function divides by the scale, but after the limit."""
    calls = (node for node in walk(module.scope_of(clip)) if isinstance(node, ast.Call))
    return any(_is_method(call, "unscale_") and call.lineno > clip.lineno for call in calls)


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _is_scaled(call: ast.Call, module: Module) -> bool:
    """Return whether a call is `scaler.scale(loss).backward()`, or the same of a variable that holds this."""
    scaled = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "backward" else None
    if isinstance(scaled, ast.Name):
        scaled = last_value(scaled, module)
    return isinstance(scaled, ast.Call) and getattr(scaled.func, "attr", "") == "scale"
