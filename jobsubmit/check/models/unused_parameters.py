"""Layers that a model makes and never uses: DistributedDataParallel waits for gradients that never come."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.program.modules import Module
from jobsubmit.common.finding import Finding

_LAYERS = frozenset(
    [
        *("Linear", "Bilinear", "Embedding", "EmbeddingBag", "Conv1d", "Conv2d", "Conv3d", "LSTM", "GRU", "RNN"),
        *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "LayerNorm", "BatchNorm1d", "BatchNorm2d"),
        *("GroupNorm", "MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer", "Parameter"),
    ]
)
_ALLOWS = ("find_unused_parameters", "static_graph", "_set_static_graph")
_BY_NAME = ("getattr", "__getattr__", "_modules", "children", "named_children", "modules_to_save")


def check_unused_parameters(code: Code) -> Iterator[Finding]:
    """Yield a warning for a layer of a wrapped model that no code reads."""
    allowed = {keyword.arg for _, keyword in code.program.of(ast.keyword)} | code.names
    if not code.wraps_models or code.world_size == 1 or allowed & {*_ALLOWS, *_BY_NAME} or code.program.unread:
        return
    read = {node.attr for _, node in code.program.of(ast.Attribute) if isinstance(node.ctx, ast.Load)}
    for module, owner in code.program.of(ast.ClassDef):
        if _is_model(code, owner, module) and _is_made(code, owner, module):
            for layer in _layers(code, owner, module):
                if layer.attr not in read and layer.attr not in code.texts:
                    yield Finding(
                        "warning",
                        "unused-parameters",
                        module.where(layer),
                        f"no code uses self.{layer.attr} of {owner.name}: DistributedDataParallel waits for its "
                        "gradients, and fails in the second step",
                        "remove it, or pass find_unused_parameters=True to DistributedDataParallel",
                    )
                    return


def _is_model(code: Code, owner: ast.ClassDef, module: Module) -> bool:
    return any(code.program.name_of(base, module) == "torch.nn.Module" for base in owner.bases)


def _is_made(code: Code, owner: ast.ClassDef, module: Module) -> bool:
    return any(
        code.reached.of(call, home) for home, call in code.program.calls_of.get(f"{module.name}.{owner.name}", ())
    )


def _layers(code: Code, owner: ast.ClassDef, module: Module) -> Iterator[ast.Attribute]:
    """Yield the attributes that a class surely sets to layers with parameters when it is made."""
    for method in (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"):
        for statement in (node for node in method.body if isinstance(node, ast.Assign)):
            target, made = statement.targets[0], statement.value
            is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            name = code.program.name_of(made.func, module) if isinstance(made, ast.Call) else ""
            if is_own and name.startswith("torch.nn.") and name.rpartition(".")[2] in _LAYERS:
                yield target  # type: ignore[misc] # it is an attribute
