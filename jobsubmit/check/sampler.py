"""Samplers of data: epochs that are shuffled alike train on the same order again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code, argument, hides_arguments
from jobsubmit.check.program.modules import Module
from jobsubmit.common.finding import Finding

_NOT_TRAINING = ("val", "test", "eval", "dev", "infer")


_SHUFFLE = 3


# They give samplers their epochs themselves.
_SET_EPOCHS = ("accelerate", "composer", "fastai", "ignite", "lightning", "mmcv", "mmengine", "pytorch_lightning")


def check_sampler(code: Code) -> Iterator[Finding]:
    """Yield a warning where a DistributedSampler shuffles every epoch alike."""
    if (
        "set_epoch" in code.names
        or "epoch" in code.program.stored_attributes
        or code.program.imports(*_SET_EPOCHS)
        or code.world_size == 1
    ):
        return
    loops = any(
        isinstance(node, ast.For) and "epoch" in ast.unparse(node.target) + ast.unparse(node.iter)
        for module, node in code.program.nodes
        if code.reached.of(node, module) and not _is_single_pass(code, module, node)
    )
    for module, call, name in code.reached.calls:
        if not loops or not (name.startswith("torch.") and name.endswith(".DistributedSampler")):
            continue
        shuffle = code.values.of(argument(call, "shuffle", _SHUFFLE), module)
        statement = next((n for n in module.above(call) if isinstance(n, ast.stmt)), None)
        spelled = ast.unparse(call) + (ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else "")
        is_shuffling = shuffle is True or argument(call, "shuffle", _SHUFFLE) is None
        is_shuffling = is_shuffling and not hides_arguments(call) and argument(call, "seed") is None
        if is_shuffling and not any(word in spelled.lower() for word in _NOT_TRAINING):
            yield Finding(
                "warning",
                "set-epoch",
                module.where(call),
                "set_epoch() is never called: the sampler shuffles every epoch alike",
                "call sampler.set_epoch(epoch) at the beginning of each epoch",
            )
            return


def _is_single_pass(code: Code, module: Module, loop: ast.AST) -> bool:
    iterable = loop.iter if isinstance(loop, ast.For) else None
    if not isinstance(iterable, ast.Call) or ast.unparse(iterable.func) != "range":
        return False
    value = code.values.of(iterable, module)
    return isinstance(value, list) and len(value) <= 1
