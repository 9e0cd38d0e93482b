"""Variables of functions that no code of this job sets, although it reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.rank_conditions import mentions_rank
from jobsubmit.check.program.calls import Reach
from jobsubmit.check.program.module import COMPREHENSIONS, FUNCTIONS, Function, Module
from jobsubmit.check.program.tree import walk
from jobsubmit.check.program.variables import parameters
from jobsubmit.common.finding import Finding

_BY_NAME = ("locals", "vars", "exec", "eval", "globals")
_CHOICES = (ast.If, ast.IfExp, ast.While)


def check_unbound(code: Code) -> Iterator[Finding]:
    """Yield a warning for the first variable that is read, and set only where this job does not come.

    `if args.log: has_wandb = True`, and then `if rank == 0 and has_wandb`, in a job without `--log`.
    """
    for module in code.program.modules.values():
        for (scope, name), stores in module.own_stores.items():
            if not isinstance(scope, FUNCTIONS) or any(code.reached.of(store, module) for store in stores):
                continue
            if name in parameters(scope) or _is_bound_otherwise(name, scope):
                continue
            read = next((node for node in walk(scope) if _is_read(code, node, name, scope, module)), None)
            if read is not None:
                yield Finding(
                    "warning",
                    "unset",
                    module.where(read),
                    f"{name} is read, and set only where this job does not come ({module.where(stores[0])}): the "
                    "program ends with an UnboundLocalError",
                    f"set {name} before, in any case",
                )
                return


def _is_bound_otherwise(name: str, function: Function) -> bool:
    """Return whether an import, a definition or a handler binds a name, or the function may set variables by name."""
    for node in walk(function):
        match node:
            case ast.alias():
                if (node.asname or node.name).partition(".")[0] == name:
                    return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
                if node.name == name:
                    return True
            case ast.Global() | ast.Nonlocal():
                if name in node.names:
                    return True
            case ast.MatchAs() | ast.MatchStar():
                if node.name == name:
                    return True
            case ast.Name():
                if node.id in _BY_NAME:
                    return True
    return False


def _is_read(code: Code, node: ast.AST, name: str, function: Function, module: Module) -> bool:
    """Return whether a function surely reads a variable here, on one rank at least, and no error is caught."""
    if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
        return False
    if module.function_of(node) is not function or not code.reached.of(node, module):
        return False
    around: list[ast.AST] = []
    inner: ast.AST = node
    for above in module.above(node):
        if isinstance(above, (ast.IfExp, ast.While)) and _is_other_branch(code, above, inner, module):
            return False
        inner = above
        if above is function:
            break
        if isinstance(above, (ast.Try, ast.Lambda, *COMPREHENSIONS, *FUNCTIONS)):
            return False
        around.append(above)
    tests = [above.test for above in around if isinstance(above, _CHOICES) and node not in walk(above.test)]
    for above in (one for one in around if isinstance(one, ast.BoolOp)):
        before = _before(above, node)
        if any(code.values.truth(part, module) is isinstance(above.op, ast.Or) for part in before):
            return False
        tests += before
    open_tests = [test for test in tests if code.values.truth(test, module) is None]
    is_entered = code.reached.entered(function, module) is Reach.SURELY
    return is_entered and all(map(mentions_rank, open_tests)) and not any(isinstance(one, ast.For) for one in around)


def _is_other_branch(code: Code, choice: ast.IfExp | ast.While, inner: ast.AST, module: Module) -> bool:
    """Return whether something is in the branch of a choice that is not taken, as far as that is known."""
    truth = code.values.truth(choice.test, module)
    body = choice.body if isinstance(choice.body, list) else [choice.body]
    others = choice.orelse if isinstance(choice.orelse, list) else [choice.orelse]
    return (inner in body and truth is False) or (inner in others and truth is True)


def _before(choice: ast.BoolOp, node: ast.Name) -> list[ast.expr]:
    """Return what is computed before a variable in `a and b`."""
    place = next(index for index, part in enumerate(choice.values) if any(one is node for one in walk(part)))
    return choice.values[:place]
