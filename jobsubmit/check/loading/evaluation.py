"""Results of a validation that each process computes on its own part of the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.loading.sampler import LOADERS
from jobsubmit.check.origins import origins
from jobsubmit.check.program.calls import argument
from jobsubmit.check.program.modules import FUNCTIONS, Module
from jobsubmit.common.finding import Finding

# Anything that may add up the parts of all processes.
_ADDS_UP = frozenset(
    [
        *("all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object", "reduce_tensor"),
        *("all_gather_into_tensor", "gather_for_metrics", "reduce_dict", "synchronize_between_processes"),
        *("torchmetrics", "sync_dist", "evaluate", "DistributedEvalSampler", "all_reduce_mean", "pad_across_processes"),
    ]
)


def check_evaluation(code: Code) -> Iterator[Finding]:
    """Yield a warning where a count of one process is divided by the number of all samples."""
    if code.has_framework or not code.is_parallel or _ADDS_UP & code.names:
        return
    for module, node in code.program.of(ast.BinOp):
        if not isinstance(node.op, ast.Div) or not code.reached.of(node, module):
            continue
        loader = _counted(code, node.right, module)
        if loader is not None and _is_divided(code, loader, module):
            yield Finding(
                "warning",
                "part-as-whole",
                module.where(node),
                f"each process has seen its own part of the data only, and divides by the size of all of it "
                f"({ast.unparse(node.right)})",
                "add up the counts of all processes with dist.all_reduce, or divide by the number of samples seen",
            )
            return


def _counted(code: Code, node: ast.expr, module: Module) -> ast.expr | None:
    """Return the loader all of whose samples an expression counts: `len(loader.dataset)`."""
    for _, part in origins(code, node, module) if isinstance(node, ast.Name) else ((module, node),):
        match part:
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(attr="dataset", value=loader)]):
                return loader
    return None


def _is_divided(code: Code, loader: ast.expr, module: Module) -> bool:
    """Return whether every loader that a variable may hold gives each process its own part."""
    made = [found for home, part in origins(code, loader, module) for found in _loaders(code, part, home)]
    return bool(made) and all(_has_sampler(code, call, home) for home, call in made)


def _loaders(code: Code, part: ast.AST, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the loaders that an expression makes, those that functions of the program return included."""
    if not isinstance(part, ast.Call):
        return
    name = code.program.name_of(part.func, module)
    if name in LOADERS:
        yield module, part
    found = code.program.definition(name)
    if found is not None and isinstance(found[1], FUNCTIONS):
        home, function = found
        for inner in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if code.program.name_of(inner.func, home) in LOADERS and code.reached.of(inner, home):
                yield home, inner


def _has_sampler(code: Code, call: ast.Call, module: Module) -> bool:
    sampler = argument(call, "sampler")
    if sampler is None:
        return False
    return any(
        isinstance(part, ast.Call) and code.program.name_of(part.func, home).endswith("DistributedSampler")
        for home, part in origins(code, sampler, module)
    )
