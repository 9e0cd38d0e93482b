"""Which of the places that set a variable counts where it is used, by the branches and loops that they stand in."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeGuard

from jobsubmit.check.program.module import EXITS, FUNCTIONS, Function, Module, spelled
from jobsubmit.check.program.program import Program
from jobsubmit.check.program.tree import children

Truth: TypeAlias = Callable[[ast.AST, Module], bool | None]
Variable: TypeAlias = tuple[ast.AST, str]  # the function, or the module's tree, that has it, and its name

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MOST_PLACES = 20


class UnclearError(Exception):
    """It is not known which place sets a variable last."""


@lru_cache(maxsize=10_000)
def parameters(function: Function) -> frozenset[str]:
    """Return the names of a function's parameters."""
    return frozenset(node.arg for node in children(function.args) if isinstance(node, ast.arg))


def variable_of(node: ast.Name, module: Module) -> Variable:
    """Return the variable that a name means: of the innermost function that has one, or else of the module."""
    for scope in module.above(node):
        if isinstance(scope, FUNCTIONS) and (node.id in parameters(scope) or (scope, node.id) in module.own_stores):
            return scope, node.id
    return module.tree, node.id


def is_load(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    """Return whether a node reads a variable."""
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def assigned_to(target: ast.expr, module: Module) -> ast.expr | None:
    """Return the expression that is assigned to a variable or an attribute here, alone or as one of several."""
    parent = module.parents.get(target)
    if isinstance(parent, ast.Tuple):
        above = module.parents.get(parent)
        if isinstance(above, ast.Assign) and isinstance(above.value, ast.Tuple):
            if len(parent.elts) == len(above.value.elts):
                return above.value.elts[parent.elts.index(target)]
        return None
    return parent.value if isinstance(parent, (ast.Assign, ast.AnnAssign)) else None


def values_of_field(program: Program, name: str) -> list[tuple[Module, ast.expr | None]]:
    """Return what each place that sets an attribute of this name sets it to; None where that is unclear."""
    stores = ((home, store, home.parents.get(store)) for home, store in program.attribute_stores.get(name, ()))
    return [
        (home, assigned_to(store, home))
        for home, store, parent in stores
        if not isinstance(parent, ast.AnnAssign) or parent.value is not None  # else it only says of what type it is
    ]


def last_place(
    places: Sequence[ast.expr], use: ast.AST | None, scope: ast.AST, module: Module, truth: Truth
) -> ast.expr | None:
    """Return the place that sets a variable last before it is used, None if none does; raise UnclearError.

    Where the use is in another scope, or in another module (None), the last place of all counts.
    """
    if len(places) > _MOST_PLACES:
        raise UnclearError
    use = use if use is not None and _scope_of(use, module) is scope else None
    around_use = list(module.above(use)) if use is not None else []
    last: ast.expr | None = None
    is_unclear = False
    for place in sorted(places, key=position):
        loop = next((one for one in module.above(place) if one in around_use and isinstance(one, _LOOPS)), None)
        if use is not None and not _is_before(place, use, module):
            is_unclear |= loop is not None and (last is None or loop not in set(module.above(last)))
            continue
        common = next((one for one in module.above(place) if one in around_use), scope)
        runs = is_executed(place, common, module, truth)
        if use is not None and isinstance(common, (ast.If, ast.Try)):
            is_other = _block_of(place, common, module) != _block_of(use, common, module)
            runs = runs if not is_other else False if isinstance(common, ast.If) else None
        if runs:
            last, is_unclear = place, False
        elif runs is None:
            is_unclear = True
    if is_unclear:
        raise UnclearError
    return last


def is_executed(node: ast.AST, scope: ast.AST, module: Module, truth: Truth) -> bool | None:
    """Return whether a node is executed when the scope around it is; None if that is not known."""
    runs: bool | None = True
    inner = node
    for above in module.above(node):
        if _is_left_before(inner, above, module, truth):
            return False
        if above is scope:
            return runs
        match above:
            case ast.If():
                branch = _branch(inner, above)
                taken = truth(above.test, module) if branch is not None else branch
                if branch is not None and taken is not None and taken is not branch:
                    return False
                runs = None if branch is not None and taken is None else runs
            case ast.For() | ast.AsyncFor() | ast.While():
                runs = None if inner in (*above.body, *above.orelse) else runs
            case ast.Try():
                works = True if inner in above.finalbody or _cannot_go_on(above) else truth(above, module)
                if works is not None and inner not in above.finalbody and works is (inner in above.handlers):
                    return False
                runs = None if works is None else runs
            case ast.Match() | ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                runs = None
        inner = above
    return runs


@lru_cache(maxsize=10_000)
def own_returns(function: Function) -> tuple[ast.Return, ...]:
    """Return the returns of a function in their order, without those of functions inside it."""
    found: list[ast.Return] = []
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Return):
            found.append(node)
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting[:0] = list(children(node))
    return tuple(found)


def _scope_of(node: ast.AST, module: Module) -> ast.AST:
    found = next((one for one in module.above(node) if isinstance(one, (*FUNCTIONS, ast.Lambda))), None)
    return module.tree if found is None else found


def position(node: ast.AST) -> tuple[int, int]:
    """Return where a node begins: its line and column."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _is_before(place: ast.AST, use: ast.AST, module: Module) -> bool:
    """Return whether a place sets its variable before a use, which may not be in the same statement."""
    statement = next((one for one in module.above(place) if isinstance(one, ast.stmt)), place)
    if isinstance(statement, (*_LOOPS, ast.With, ast.AsyncWith)):
        return position(place) < position(use)
    return statement not in set(module.above(use)) and position(statement) < position(use)


def _branch(inner: ast.AST, above: ast.If) -> bool | None:
    """Return which branch of a condition something is in, None for the condition itself."""
    return True if inner in above.body else False if inner in above.orelse else None


def _block_of(node: ast.AST, above: ast.AST, module: Module) -> str:
    """Return the name of the block of a statement, such as `orelse`, that a node is in."""
    inner = next(one for one in (node, *module.above(node)) if module.parents.get(one) is above)
    blocks = (name for name, block in ast.iter_fields(above) if isinstance(block, list) and inner in block)
    return next(blocks, "")


def _is_left_before(inner: ast.AST, above: ast.AST, module: Module, truth: Truth) -> bool:
    if above not in module.leaving and not isinstance(above, (*FUNCTIONS, ast.ClassDef)):
        return False
    for name in ("body", "orelse", "finalbody"):
        block: Any = getattr(above, name, None)
        if isinstance(block, list) and inner in block:
            before = block[: block.index(inner)]
            return any(_leaves(one, module, truth) for one in before if one in module.leaving)
    return False


def _leaves(node: ast.stmt, module: Module, truth: Truth) -> bool:
    """Return whether a statement that may leave the block it is in surely does so."""
    match node:
        case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
            return True
        case ast.Expr(value=ast.Call(func=function)):
            return spelled(function) in EXITS
        case ast.If():
            taken = truth(node.test, module)
            body = node.body if taken else node.orelse
            return taken is not None and any(_leaves(one, module, truth) for one in body if one in module.leaving)
    return False


def _cannot_go_on(node: ast.Try) -> bool:
    """Return whether the program ends where something fails in a block."""
    return all(isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)
