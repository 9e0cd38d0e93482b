"""Gradients and collectives: what makes a training wrong, slow or hang without an error."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import INIT, Code, argument, hides_arguments, is_ddp
from jobsubmit.check.program.modules import Module
from jobsubmit.check.sampler import check_sampler
from jobsubmit.common.finding import Finding

_ALL_REDUCE = "torch.distributed.all_reduce"
_COLLECTIVES = frozenset(
    f"torch.distributed.{name}"
    for name in (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "monitored_barrier",
        "reduce",
        "reduce_scatter",
        "scatter",
    )
)
_DIVIDES = ("div", "div_", "mul_", "mul", "true_divide", "true_divide_", "_foreach_div_", "_foreach_mul_")
_RANKS = ("rank", "global_rank", "local_rank", "world_rank", "ddp_rank", "ddp_local_rank", "process_index")
_MAIN = ("is_main_process", "is_master", "is_rank_zero", "is_main")
_PLAIN_ARGUMENTS = 2  # what comes after may be a group of some processes


def check_collectives(code: Code) -> Iterator[Finding]:
    """Yield what would train wrongly, or hang."""
    yield from _gradients(code)
    yield from check_sampler(code)
    yield from _destroy(code)
    if code.world_size != 1:
        yield from _rank_0_only(code)


def _gradients(code: Code) -> Iterator[Finding]:
    reduced = [(module, call) for module, call in code.calls(_ALL_REDUCE) if _is_gradient(argument(call, "tensor", 0))]
    wrapped = [(m, call) for m, call, name in code.reached.calls if is_ddp(name)]
    if not reduced:
        return
    module, call = reduced[0]
    is_left_to_us = bool({"no_sync", "require_backward_grad_sync"} & code.names)
    if any(code.reached.is_sure(c, m) for m, c in wrapped) and code.reached.is_sure(call, module) and not is_left_to_us:
        yield Finding(
            "warning",
            "double-averaging",
            module.where(call),
            "DistributedDataParallel averages the gradients already: this sends each of them a second time",
            "keep one of the two",
        )
    op = argument(call, "op", 1)
    is_sum = op is None or ast.unparse(op).endswith("SUM")
    if is_sum and not _divides(code, call, module):
        yield Finding(
            "warning",
            "sum-not-divided",
            module.where(call),
            "the gradients are added up over all processes and never divided: they are world_size times too large",
            "divide by dist.get_world_size(), or use op=dist.ReduceOp.AVG (NCCL)",
        )


def _is_gradient(node: ast.AST | None) -> bool:
    while isinstance(node, ast.Attribute):
        if node.attr == "grad":
            return True
        node = node.value
    return False


def _divides(code: Code, call: ast.Call, module: Module) -> bool:
    """Return whether gradients may be divided: beside the call, or gradients, losses or step sizes anywhere."""
    scope = next((n for n in module.above(call) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
    if any(_is_division(node) for node in ast.walk(scope or ast.Pass())):
        return True
    for _, node in code.program.nodes:
        text = ast.unparse(node) if _is_division(node) else ""
        is_by_size = "world" in text or "size" in text
        if "grad" in text or (is_by_size and ("loss" in text or "lr" in text or "learning_rate" in text)):
            return True
    return False


def _is_division(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return "grad" in ast.unparse(node)
    if isinstance(node, (ast.AugAssign, ast.BinOp)):
        return isinstance(node.op, (ast.Div, ast.Mult))
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _DIVIDES


def _destroy(code: Code) -> Iterator[Finding]:
    if "destroy_process_group" in code.names:
        return
    for module, call in code.calls(INIT):
        yield Finding(
            "hint",
            "destroy",
            module.where(call),
            "the process group is never ended: some versions of torch warn, or hang at exit",
            "call torch.distributed.destroy_process_group() at the end",
        )
        return


def _rank_0_only(code: Code) -> Iterator[Finding]:
    for module, node in code.program.nodes:
        if not isinstance(node, ast.If) or not code.reached.of(node, module) or not _is_rank_0(node.test, code, module):
            continue
        alone = next(_collectives(node.body, code, module), None)
        if alone is None or any(True for _ in _collectives(node.orelse, code, module)):
            continue
        if _has_counterpart(node, code, module) or _goes_its_own_way(node, code, module):
            continue
        name = code.program.name_of(alone.func, module).rpartition(".")[2]
        yield Finding(
            "warning",
            "rank-0-collective",
            module.where(alone),
            f"only rank 0 comes to this {name}(), which waits for all of them: the job would hang",
            "take it out of the branch",
        )


def _is_rank_0(test: ast.AST, code: Code, module: Module) -> bool:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        sides = [test.left, test.comparators[0]]
        zero = [side for side in sides if isinstance(side, ast.Constant) and side.value == 0]
        return len(zero) == 1 and any(_is_rank(side, code, module) for side in sides if side not in zero)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_rank(test.operand, code, module)
    if isinstance(test, ast.Call):
        return ast.unparse(test.func).rpartition(".")[2] in _MAIN and not test.args
    return False


def _is_rank(node: ast.AST, code: Code, module: Module) -> bool:
    if isinstance(node, ast.Call):
        return code.program.name_of(node.func, module).rpartition(".")[2] == "get_rank" and not node.args
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in _RANKS


def _collectives(body: list[ast.stmt], code: Code, module: Module) -> Iterator[ast.Call]:
    for statement in body:
        for node in _here(statement):
            if isinstance(node, ast.Call) and code.program.name_of(node.func, module) in _COLLECTIVES:
                if argument(node, "group") is None and not hides_arguments(node) and len(node.args) <= _PLAIN_ARGUMENTS:
                    yield node


def _here(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is executed with a statement: not what is in a function that it defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _here(child)


def _has_counterpart(node: ast.If, code: Code, module: Module) -> bool:
    """Return whether the other ranks come to a collective in a branch of their own, or rank 0 alone goes on."""
    for home, other in code.program.nodes:
        if other is node or not isinstance(other, ast.If) or _is_rank_0(other.test, code, home):
            continue
        text = ast.unparse(other.test)
        if any(rank in text for rank in _RANKS) or any(name in text for name in _MAIN):
            leaves = any(isinstance(inner, (ast.Return, ast.Continue)) for inner in ast.walk(other))
            if leaves or any(True for _ in _collectives(other.body, code, home)):
                return True
    return False


def _goes_its_own_way(node: ast.If, code: Code, module: Module) -> bool:
    """Return whether rank 0 leaves, or the others call something that may come to the same collective."""
    leaves = any(isinstance(inner, (ast.Return, ast.Continue, ast.Break, ast.Raise)) for inner in ast.walk(node))
    calls = [inner for statement in node.orelse for inner in ast.walk(statement) if isinstance(inner, ast.Call)]
    return leaves or any(code.program.definition(code.program.name_of(c.func, module)) for c in calls)
