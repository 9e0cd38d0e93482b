"""Variables and fields that only some ranks set, and others read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jobsubmit.check.code import Code
from jobsubmit.check.collectives.rank_conditions import mentions_rank, zero_side
from jobsubmit.check.interpreter.follow import Followed
from jobsubmit.check.program.module import COMPREHENSIONS, Module, unparsed
from jobsubmit.check.program.tree import walk
from jobsubmit.common.finding import Finding

_SETS_OTHERWISE = frozenset(["setattr", "__dict__", "vars", "__slots__", "__init_subclass__", "__setattr__", "__new__"])
_MAY_BE_SKIPPED = (
    *(ast.BoolOp, ast.IfExp, ast.Lambda, ast.With, ast.AsyncWith, ast.For, ast.While, ast.Try),
    *COMPREHENSIONS,
)


def check_unset(code: Code) -> Iterator[Finding]:
    """Yield a warning where a process reads what only another one has set, because of its rank."""
    for one in code.followed:
        for node, module in one.unset.items():
            has_set = any(node in other.values and node not in other.unset for other in code.followed)
            stores = _stores_of(code, node, module)
            if not has_set or not stores or _may_be_skipped(one, node, module) or _is_set_otherwise(code, node, module):
                continue
            if not all(_is_for_some_ranks(code, store, home) for home, store in stores):
                continue
            name, where = unparsed(node), stores[0][0].where(stores[0][1])
            error = "AttributeError" if isinstance(node, ast.Attribute) else "NameError"
            yield Finding(
                "warning",
                "unset",
                module.where(node),
                f"rank {one.process.rank} reads {name}, which only some ranks set ({where}): {error}",
                f"set {name} on every rank, or read it only where it is set",
            )
            return


def _stores_of(code: Code, node: ast.Name | ast.Attribute, module: Module) -> list[tuple[Module, ast.expr]]:
    """Return all places that set a variable, or a field of that name."""
    if isinstance(node, ast.Attribute):
        return list(code.program.attribute_stores.get(node.attr, ()))
    return [(module, store) for store in module.stores.get((module.scope_of(node), node.id), ())]


def _may_be_skipped(one: Followed, node: ast.expr, module: Module) -> bool:
    """Return whether something in the same function may keep a process from reading, or catch the error."""
    inside: ast.AST = node
    for above in module.above(node):
        if isinstance(above, ast.FunctionDef):
            return False
        is_first = isinstance(above, ast.BoolOp) and above.values[0] is inside
        is_unknown = isinstance(above, ast.If) and not isinstance(one.values.get(above.test), bool)
        if (isinstance(above, _MAY_BE_SKIPPED) and not is_first) or (is_unknown and inside is not above.test):  # type: ignore[attr-defined]
            return True
        inside = above
    return False


def _is_set_otherwise(code: Code, node: ast.Name | ast.Attribute, module: Module) -> bool:
    """Return whether a variable or a field may be set in a way that its stores do not show."""
    if isinstance(node, ast.Attribute):
        homes = {home.name: home for home, _ in code.program.attribute_stores.get(node.attr, ())}
        return _has_default(code, node.attr) or any(
            not _SETS_OTHERWISE.isdisjoint(home.names) for home in homes.values()
        )
    declared = any(node.id in one.names for one in module.of(ast.Global, ast.Nonlocal))
    return declared or any(type(one).__name__ == "Match" for one in walk(module.scope_of(node)))


def _has_default(code: Code, name: str) -> bool:
    """Return whether a class gives a field a value for all of its objects."""
    statements = (one for _, owner in code.program.of(ast.ClassDef) for one in owner.body)
    assigned = (one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None) for one in statements)
    return any(isinstance(one, ast.Name) and one.id == name for one in assigned)


def _is_for_some_ranks(code: Code, store: ast.expr, module: Module) -> bool:
    """Return whether a condition on the rank decides whether something is set."""
    tests = (above.test for above in module.above(store) if isinstance(above, ast.If))
    return any(mentions_rank(test) or zero_side(test, code, module) is not None for test in tests)
