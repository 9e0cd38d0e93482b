"""Loops whose passes wait for all ranks, and the conditions under which one leaves them."""

from __future__ import annotations

import ast

from jobsubmit.check.code import ACCELERATOR, Code, is_sharding, trains
from jobsubmit.check.collectives.calls import CollectiveFinder
from jobsubmit.check.program.module import FUNCTIONS, Function, Module, spelled
from jobsubmit.check.program.tree import walk

_EXCHANGE_GRADIENTS = (ACCELERATOR, "deepspeed.initialize", "horovod.torch.DistributedOptimizer")
_DEEPEST = 3


def loop_and_tests(node: ast.AST, module: Module) -> tuple[ast.For | ast.While | None, list[ast.If]]:
    """Return the loop of this function that a node leaves, and the conditions inside it."""
    tests: list[ast.If] = []
    for above in module.above(node):
        if isinstance(above, (ast.For, ast.While)):
            return above, tests
        if isinstance(above, FUNCTIONS):
            break
        if isinstance(above, ast.If):
            tests.append(above)
    return None, []


def synchronizes(finder: CollectiveFinder, loop: ast.AST, module: Module) -> bool:
    """Return whether each pass of a loop waits for all ranks: it trains, or calls a collective."""
    if exchanges_gradients(finder.code) and trains_inside(finder.code, loop, module):
        return True
    statements = getattr(loop, "body", [])
    if next(finder.collectives(statements, module), None) is not None:
        return True
    return any(finder.name_of(node, module) for node in walk(loop) if isinstance(node, ast.Call))


def exchanges_gradients(code: Code) -> bool:
    """Return whether gradients are exchanged when they are computed: by a wrapper, an engine or an optimizer."""
    is_sharded = any(is_sharding(name) for _, _, name in code.reached.calls)
    return code.wraps_models or is_sharded or any(code.calls(*_EXCHANGE_GRADIENTS))


def trains_inside(code: Code, node: ast.AST, module: Module, depth: int = 0) -> bool:
    """Return whether a part of a program computes gradients, itself or in the functions and methods that it calls."""
    if trains(node):
        return True
    for call in (one for one in walk(node) if isinstance(one, ast.Call)) if depth < _DEEPEST else ():
        found = code.program.called(call, module)
        methods = code.program.methods.get(call.func.attr, ()) if isinstance(call.func, ast.Attribute) else ()
        called = (
            [found] if found is not None else [(one[0], one[2]) for one in methods if not _leaves_to_others(one[2])]
        )
        if called and all(one is not node and trains_inside(code, one, home, depth + 1) for home, one in called):
            return True
        if found is None and _scales_loss(code, call):
            return True
    return False


def _leaves_to_others(method: Function) -> bool:
    """Return whether a method does nothing itself: it is empty, raises an error, or calls that of its base."""
    is_empty = all(isinstance(one, (ast.Pass, ast.Raise, ast.Expr)) for one in method.body) and not trains(method)
    return is_empty or any(isinstance(node, ast.Name) and node.id == "super" for node in walk(method))


def _scales_loss(code: Code, call: ast.Call) -> bool:
    """Return whether a call is that of an object that computes gradients of a loss: `loss_scaler(loss, optimizer)`."""
    is_given = any("loss" in spelled(given) for given in call.args[:1])
    calls = [method for _, _, method in code.program.methods.get("__call__", ())]
    return is_given and "scaler" in spelled(call.func) and any(map(trains, calls))
