"""Gradients that a GradScaler has multiplied, clipped as if they were not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.calls import argument
from jobsubmit.common.finding import Finding

_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")
_SCALERS = ("torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler")


def check_scaling(code: Code) -> Iterator[Finding]:
    """Yield a warning for a limit of gradients that are still multiplied by the scale, some ten thousands."""
    scalers = [(module, call) for module, call in code.calls(*_SCALERS)]
    if not scalers or code.has_framework or "unscale_" in code.names:
        return
    if any(_may_be_off(call) for _, call in scalers) or not any(_is_scaled(call) for _, call, _ in code.reached.calls):
        return
    for module, call in code.calls(*_CLIPS):
        yield Finding(
            "warning",
            "clipped-scaled",
            module.where(call),
            "these gradients are still multiplied by the scale of the GradScaler: the limit makes them far too small",
            "call scaler.unscale_(optimizer) before it",
        )
        return


def _may_be_off(call: ast.Call) -> bool:
    """Return whether a scaler may do nothing."""
    enabled = argument(call, "enabled")
    return enabled is not None and not (isinstance(enabled, ast.Constant) and enabled.value is True)


def _is_scaled(call: ast.Call) -> bool:
    """Return whether a call is `scaler.scale(loss).backward()`."""
    scaled = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "backward" else None
    return isinstance(scaled, ast.Call) and getattr(scaled.func, "attr", "") == "scale"
